"""PEGASUS (Zhang et al. 2020)."""

from collections.abc import Mapping

from torch import Tensor

from triptych.interop.families.bart import GENERATIVE
from triptych.interop.families.family import Settings, TheirConfig
from triptych.interop.families.marian import Marian


class Pegasus(Marian):
    """MarianMT with the norms before the sub-layers, and a last one; Triptych's own full model, as it is by default."""

    model_type = "pegasus"
    classes = dict.fromkeys(GENERATIVE, "PegasusForConditionalGeneration")

    def settings(self, config: TheirConfig, tensors: Mapping[str, Tensor]) -> Settings:
        return super().settings(config, tensors) | {"block/residual": "pre"}
