"""PEGASUS (Zhang et al. 2020).

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping

from torch import Tensor

from triptych.interop.families.bart import GENERATIVE
from triptych.interop.families.family import HFConfig, Settings
from triptych.interop.families.marian import Marian


class Pegasus(Marian):
    """MarianMT with the norms before the sub-layers, and a final one; equal to the default full model of Triptych."""

    model_type = "pegasus"
    classes = dict.fromkeys(GENERATIVE, "PegasusForConditionalGeneration")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        return super().settings(config, tensors) | {"block/residual": "pre_norm"}
