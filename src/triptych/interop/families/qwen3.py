"""Qwen 3 (Yang et al. 2025), of the dense models.

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import DECODER_CLASSES, HFConfig, Settings
from triptych.interop.families.layer_types import FULL, SLIDING, hf_layer_types, layer_windows
from triptych.interop.families.llama import QK_NORMS, Llama


class Qwen3(Llama):
    """LLaMA with norms of queries and keys per head, and with windows in some layers."""

    model_type = "qwen3"
    classes = {task: f"Qwen3{ending}" for task, ending in DECODER_CLASSES.items()}
    names = {**Llama.names, **QK_NORMS}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("attention_bias", False, [False])  # with the output only: ours has all or none
        num_layers = config.size("num_hidden_layers")
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window", False) else None
        first = num_layers if window is None else config.get("max_window_layers", 28)
        kinds = [SLIDING if i >= first else FULL for i in range(num_layers)]
        return super().settings(config, tensors) | {
            "block/attention": "qk_norm",
            "block.attention.sliding_windows": layer_windows(config, kinds, window),
            "shape.head_dim": config.get("head_dim", 128),
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several window widths, the first."""
        kinds, window = hf_layer_types(model, "decoder")
        return super().config(model) | {
            "head_dim": model["decoder.head_dim"] or model["decoder.d_model"] // model["decoder.num_heads"],
            "attention_bias": False,
            "mlp_bias": False,
            "layer_types": kinds,
            "sliding_window": window,
            "use_sliding_window": window is not None,
        }
