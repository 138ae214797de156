"""Qwen 3 (Yang et al. 2025), of the dense models."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import TOKEN_TASKS, Settings, TheirConfig
from triptych.interop.families.layer_types import FULL, SLIDING, their_layer_types, windows_of
from triptych.interop.families.llama import LAYER, Llama


class Qwen3(Llama):
    """LLaMA with norms of queries and keys, each head by itself, and with windows in some layers."""

    model_type = "qwen3"
    classes = {
        **dict.fromkeys(TOKEN_TASKS, "Qwen3ForCausalLM"),
        "classification": "Qwen3ForSequenceClassification",
        "tagging": "Qwen3ForTokenClassification",
    }
    names = {
        **Llama.names,
        "decoder.layers.{}.self_attention.q_norm": LAYER + "self_attn.q_norm",
        "decoder.layers.{}.self_attention.k_norm": LAYER + "self_attn.k_norm",
    }

    def settings(self, config: TheirConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("attention_bias", False, [False])  # of the output too, but no other layer: ours has all or none
        num_layers = config.size("num_hidden_layers")
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window", False) else None
        first = num_layers if window is None else config.get("max_window_layers", 28)
        kinds = [SLIDING if i >= first else FULL for i in range(num_layers)]
        return super().settings(config, tensors) | {
            "block/attention": "qk_norm",
            "block.attention.windows": windows_of(config, kinds, window),
            "shape.head_dim": config.get("head_dim", 128),
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several widths of windows, the first."""
        kinds, window = their_layer_types(model, "decoder")
        return super().config(model) | {
            "head_dim": model["decoder.head_dim"] or model["decoder.d_model"] // model["decoder.num_heads"],
            "attention_bias": False,
            "mlp_bias": False,
            "layer_types": kinds,
            "sliding_window": window,
            "use_sliding_window": window is not None,
        }
