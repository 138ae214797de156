"""ModernBERT's decoder: the decoders of Ettin (Weller et al. 2025).

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import TOKEN_TASKS, HFConfig, Settings
from triptych.interop.families.layer_types import hf_layer_types
from triptych.interop.families.modernbert import HEAD, ModernBert, config_of, modernbert_settings, names_of


class ModernBertDecoder(ModernBert):
    """The same blocks in a causal stack, with separate queries, keys and values; predictions also use act(x W)."""

    model_type = "modernbert-decoder"
    architecture = "decoder_only"
    classes = {
        **dict.fromkeys(TOKEN_TASKS, "ModernBertDecoderForCausalLM"),
        "classification": "ModernBertDecoderForSequenceClassification",
    }
    names = names_of("decoder", {f"self_attention.{kind}": f"attn.{kind}_proj" for kind in "qkv"})
    heads = {
        **{
            task: {"head.dense": "lm_head.dense", "head.norm": "lm_head.norm", "head.output": "decoder"}
            for task in TOKEN_TASKS
        },
        "classification": {**HEAD, "head.output": "classifier"},
    }

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        return {
            **modernbert_settings(config, config.get("sliding_window", None) or config.size("local_attention") // 2),
            **self.plain_settings(config),
            "heads.classes.bias": "trained" if config.get("classifier_bias", False) else "none",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several window widths, the first."""
        window = hf_layer_types(model, "decoder")[1] or 64
        windows = {"local_attention": 2 * window, "sliding_window": window}
        return config_of(model, "decoder") | self.plain_config(model) | windows
