"""ModernBERT's decoder: the decoders of Ettin (Weller et al. 2025)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import TOKEN_TASKS, Settings, TheirConfig
from triptych.interop.families.layer_types import their_layer_types
from triptych.interop.families.modernbert import HEAD, ModernBert, config_of, names_of, settings_of


class ModernBertDecoder(ModernBert):
    """The same blocks in a causal stack, with queries, keys and values apart; tokens are read from act(x W) too."""

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

    def settings(self, config: TheirConfig, tensors: Mapping[str, Tensor]) -> Settings:
        window = config.get("sliding_window", None) or config.size("local_attention") // 2
        return (
            settings_of(config, window)
            | self.plain_settings(config)
            | {
                "heads.classes.bias": "trained" if config.get("classifier_bias", False) else "none",
            }
        )

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several widths of windows, the first."""
        window = their_layer_types(model, "decoder")[1] or 64
        windows = {"local_attention": 2 * window, "sliding_window": window}
        return config_of(model, "decoder") | self.plain_config(model) | windows
