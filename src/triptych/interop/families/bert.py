"""BERT (Devlin et al. 2019).

Tested by tests/interop/test_encoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import ENCODER_CLASSES, Family, HFConfig, Settings, attention_names, hf_activation

LAYER = "bert.encoder.layer.{}."
PROJECTIONS = ("self.query", "self.key", "self.value", "output.dense")


class Bert(Family):
    """Post-norm, learned positions, token types; the head for masked tokens has a transform before the tied output."""

    model_type = "bert"
    architecture = "encoder_only"
    prefix = "bert."
    classes = {task: f"Bert{ending}" for task, ending in ENCODER_CLASSES.items()}
    names = {
        "embedding.tokens": "bert.embeddings.word_embeddings",
        "embedding.token_types": "bert.embeddings.token_type_embeddings",
        "encoder.position.table": "bert.embeddings.position_embeddings.weight",
        "encoder.embed_norm": "bert.embeddings.LayerNorm",
        **attention_names("encoder.layers.{}.self_attention", LAYER + "attention.", PROJECTIONS),
        "encoder.layers.{}.self_residual.norm": LAYER + "attention.output.LayerNorm",
        "encoder.layers.{}.feed_forward.up": LAYER + "intermediate.dense",
        "encoder.layers.{}.feed_forward.down": LAYER + "output.dense",
        "encoder.layers.{}.feed_forward_residual.norm": LAYER + "output.LayerNorm",
    }
    heads = {
        "denoising": {
            "head.dense": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.LayerNorm",
            "head.output.weight": "cls.predictions.decoder.weight",
            "head.output.bias": "cls.predictions.bias",
        },
        "classification": {"head.dense": "bert.pooler.dense", "head.output": "classifier"},
        "tagging": {"head.output": "classifier"},
        "question_answering": {"head.output": "qa_outputs"},
    }
    copies = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    tied_copies = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
    own_if_untied = ("cls.predictions.decoder.bias",)
    numbers = {
        "norm.eps": ("layer_norm_eps", 1e-12),
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention.dropout": ("attention_probs_dropout_prob", 0.1),
    }
    buffers = (r"bert\.embeddings\.position_ids",)
    other_heads = (r"bert\.pooler\..*", r"cls\..*", r"classifier\..*", r"qa_outputs\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("position_embedding_type", "absolute", ["absolute"])
        config.expect("is_decoder", False, [False])
        activation = config.activation("hidden_act", "gelu")
        return {
            **self.plain_settings(config),
            "block/residual": "post_norm",
            "block.embed_norm": True,
            "block.feed_forward.activation": activation,
            "block/position": "learned",
            "block.scale_embedding": False,
            "block.num_token_types": config.get("type_vocab_size", 2),
            "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
            "head@heads.tokens": "bert",
            "heads.tokens.transform": activation,
            "heads.classes.transform": "tanh",
            "heads.classes.bias": "trained",
            "heads.tags.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        return {
            **self.plain_config(model),
            "hidden_act": hf_activation(model, "encoder"),
            "type_vocab_size": max(model["embedding.num_token_types"], 1),
            "tie_word_embeddings": model["tie_word_embeddings"] or model["head.pooling"] != "none",
        }
