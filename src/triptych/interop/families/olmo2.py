"""OLMo 2 (OLMo Team 2025).

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import TOKEN_TASKS, HFConfig, Settings
from triptych.interop.families.llama import LAYER, QK_NORMS, Llama


class Olmo2(Llama):
    """LLaMA with the norms after the sub-layers, and with norms of queries and keys over all heads."""

    model_type = "olmo2"
    classes = {**dict.fromkeys(TOKEN_TASKS, "Olmo2ForCausalLM"), "classification": "Olmo2ForSequenceClassification"}
    names = {
        **Llama.names,
        **QK_NORMS,
        "decoder.layers.{}.self_residual.norm": LAYER + "post_attention_layernorm",
        "decoder.layers.{}.feed_forward_residual.norm": LAYER + "post_feedforward_layernorm",
    }

    numbers = {**Llama.numbers, "norm.eps": ("rms_norm_eps", 1e-5)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("attention_bias", False, [False])  # with the output only: ours has all or none
        return super().settings(config, tensors) | {
            "block/attention": "qk_norm",
            "block.attention.qk_norm_over": "all",
            "block/residual": "res_post_norm",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        return super().config(model) | {
            "head_dim": model["decoder.head_dim"] or model["decoder.d_model"] // model["decoder.num_heads"],
            "attention_bias": False,
            "mlp_bias": False,
        }
