"""Longformer (Beltagy et al. 2020).

Tested by tests/interop/test_encoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.family import ENCODER_CLASSES, HFConfig, Settings
from triptych.interop.families.roberta import Roberta

ATTENTION = "longformer.encoder.layer.{}.attention.self."


class LongformerFamily(Roberta):
    """RoBERTa with windowed attention, and global attention of the first token in every task.

    (``transformers`` makes the first token global only in classification; elsewhere it needs
    ``global_attention_mask``.)
    """

    model_type = "longformer"
    prefix = "longformer."
    classes = {task: f"Longformer{ENCODER_CLASSES[task]}" for task in ("denoising", "classification", "tagging")}
    names = {
        **{ours: theirs.replace("roberta.", "longformer.", 1) for ours, theirs in Roberta.names.items()},
        "encoder.layers.{}.self_attention.global_q": ATTENTION + "query_global",
        "encoder.layers.{}.self_attention.global_k": ATTENTION + "key_global",
        "encoder.layers.{}.self_attention.global_v": ATTENTION + "value_global",
    }
    tied_copies = {"lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight"}
    buffers = (r"longformer\.embeddings\.position_ids",)
    other_heads = (r"longformer\.pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        num_layers, widths = config.size("num_hidden_layers"), config.get("attention_window", 512)
        widths = [widths] * num_layers if isinstance(widths, int) else widths
        if len(widths) != num_layers or any(width < 2 or width % 2 for width in widths):
            raise ConfigError(
                f"{config.place}: attention_window={widths}; expected an even number for each of "
                f"num_hidden_layers={num_layers}"
            )
        return super().settings(config, tensors) | {
            "block/attention": "longformer",
            # theirs: both sides, without the position itself
            "block.attention.sliding_windows": [width // 2 + 1 for width in widths],
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; ``transformers`` supports only widths of at least 4 that all divide the largest."""
        num_layers, windows = model["encoder.num_layers"], model.get("encoder.attention.sliding_windows") or [None]
        widths = [max(2 * ((windows[i % len(windows)] or 0) - 1), 4) for i in range(num_layers)]
        largest = max(widths)
        return super().config(model) | {"attention_window": [largest if largest % width else width for width in widths]}
