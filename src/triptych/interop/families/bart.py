"""BART (Lewis et al. 2020).

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import WRITING, Family, HFConfig, Settings, hf_activation

GENERATIVE = (*WRITING, "language_modeling")
"""Tasks for which a full model generates tokens; one class of ``transformers`` serves all of them."""

SUBLAYERS = {
    "self_attention.q": "self_attn.q_proj",
    "self_attention.k": "self_attn.k_proj",
    "self_attention.v": "self_attn.v_proj",
    "self_attention.o": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_attention.q": "encoder_attn.q_proj",
    "cross_attention.k": "encoder_attn.k_proj",
    "cross_attention.v": "encoder_attn.v_proj",
    "cross_attention.o": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
OUTSIDE = {"position.table": "embed_positions.weight", "embed_norm": "layernorm_embedding", "final_norm": "layer_norm"}


class Bart(Family):
    """Post-norm, learned positions after two unused rows, a fixed bias of the tied output."""

    model_type = "bart"
    architecture = "full"
    prefix = "model."
    classes = {
        **dict.fromkeys(GENERATIVE, "BartForConditionalGeneration"),
        "classification": "BartForSequenceClassification",
    }
    names = {
        "embedding.tokens": "model.shared",
        **{
            f"{stack}.{ours}": f"model.{stack}.{theirs}"
            for stack in ("encoder", "decoder")
            for ours, theirs in OUTSIDE.items()
        },
        **{
            f"{stack}.layers.{{}}.{ours}": f"model.{stack}.layers.{{}}.{theirs}"
            for stack in ("encoder", "decoder")
            for ours, theirs in SUBLAYERS.items()
        },
    }
    heads = {
        **{
            key: {"head.output.weight": "lm_head.weight", "head.output.bias": "final_logits_bias"} for key in GENERATIVE
        },
        "classification": {"head.dense": "classification_head.dense", "head.output": "classification_head.out_proj"},
    }
    copies = {
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    }
    tied_copies = {"lm_head.weight": "model.shared.weight"}
    own_if_untied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    sizes = {
        "d_model": "d_model",
        "num_layers": "encoder_layers",
        "num_heads": "encoder_attention_heads",
        "d_ff": "encoder_ffn_dim",
    }
    numbers = {
        "dropout": ("dropout", 0.1),
        "attention.dropout": ("attention_dropout", 0.0),
        "feed_forward.dropout": ("activation_dropout", 0.0),
    }
    buffers = (r"model\.(en|de)coder\.version",)
    other_heads = (r"lm_head\.weight", r"final_logits_bias", r"classification_head\..*", r"qa_outputs\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        return {
            "shape.vocab_size": config.size("vocab_size"),
            **self.plain_settings(config),
            "shape.max_length": config.size("max_position_embeddings"),
            "model.decoder.num_layers": config.size("decoder_layers"),
            "model.decoder.num_heads": config.size("decoder_attention_heads"),
            "model.decoder.d_ff": config.size("decoder_ffn_dim"),
            "block.norm.eps": 1e-5,
            "block/residual": "post_norm",
            "block.embed_norm": True,
            "block.feed_forward.activation": config.activation("activation_function", "gelu"),
            "block/position": "learned",
            "block.position.first": 2,
            "block.scale_embedding": config.get("scale_embedding", False),
            "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
            "heads.tokens.bias": "fixed",
            "heads.classes.transform": "tanh",
            "heads.classes.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        return {
            "decoder_layers": model["decoder.num_layers"],
            "decoder_attention_heads": model["decoder.num_heads"],
            "decoder_ffn_dim": model["decoder.d_ff"],
            "vocab_size": model["embedding.vocab_size"],
            "max_position_embeddings": max(model["encoder.max_length"], model["decoder.max_length"]),
            **self.plain_config(model),
            "activation_function": hf_activation(model, "encoder"),
            "scale_embedding": model["embedding.scale_embedding"],
            "tie_word_embeddings": model["tie_word_embeddings"] or model["head.pooling"] != "none",
        }

    def shapes(self, config: HFConfig) -> Mapping[str, tuple[int, ...]]:
        return {"final_logits_bias": (1, -1)}
