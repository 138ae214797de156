"""RoBERTa (Liu et al. 2019).

Tested by tests/interop/test_encoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.bert import Bert
from triptych.interop.families.family import ENCODER_CLASSES, HFConfig, Settings


class Roberta(Bert):
    """BERT, but positions start at the padding token's id + 1 and count only non-padding tokens."""

    model_type = "roberta"
    prefix = "roberta."
    classes = {task: f"Roberta{ending}" for task, ending in ENCODER_CLASSES.items()}
    names = {ours: theirs.replace("bert.", "roberta.", 1) for ours, theirs in Bert.names.items()}
    heads = {
        **Bert.heads,
        "denoising": {
            "head.dense": "lm_head.dense",
            "head.norm": "lm_head.layer_norm",
            "head.output.weight": "lm_head.decoder.weight",
            "head.output.bias": "lm_head.bias",
        },
        "classification": {"head.dense": "classifier.dense", "head.output": "classifier.out_proj"},
    }
    copies = {"lm_head.decoder.bias": "lm_head.bias"}
    tied_copies = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight"}
    own_if_untied = ("lm_head.decoder.bias",)
    buffers = (r"roberta\.embeddings\.position_ids",)
    other_heads = (r"roberta\.pooler\..*", r"lm_head\..*", r"classifier\..*", r"qa_outputs\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        first = config.get("pad_token_id", 1) + 1
        return super().settings(config, tensors) | {
            "shape.max_length": config.size("max_position_embeddings") - first,
            "block.position.first": first,
            "heads.tokens.transform": "gelu",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; without rows before the first position, two are added, as published."""
        first = model.get("encoder.position.first", 0) or 2
        return super().config(model) | {
            "max_position_embeddings": model["encoder.max_length"] + first,
            "pad_token_id": first - 1,
        }
