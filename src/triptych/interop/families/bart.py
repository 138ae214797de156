"""BART (Lewis et al. 2020).

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.family import WRITING, Family, HFConfig, Settings, attention_names, hf_activation

GENERATIVE = (*WRITING, "language_modeling")
"""Tasks for which a full model generates tokens; one class of ``transformers`` serves all of them."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
"""Their names of the projections to queries, keys, values and output."""
STACK = {
    "position.table": "embed_positions.weight",
    **attention_names("layers.{}.self_attention", "layers.{}.self_attn.", PROJECTIONS),
    "layers.{}.self_residual.norm": "layers.{}.self_attn_layer_norm",
    **attention_names("layers.{}.cross_attention", "layers.{}.encoder_attn.", PROJECTIONS),
    "layers.{}.cross_residual.norm": "layers.{}.encoder_attn_layer_norm",
    "layers.{}.feed_forward.up": "layers.{}.fc1",
    "layers.{}.feed_forward.down": "layers.{}.fc2",
    "layers.{}.feed_forward_residual.norm": "layers.{}.final_layer_norm",
    "final_norm": "layer_norm",
}
"""Their name of each module within a stack."""
DECODER_SIZES = {"num_layers": "decoder_layers", "num_heads": "decoder_attention_heads", "d_ff": "decoder_ffn_dim"}
"""Their names of the sizes of the decoder, which may differ from those of the encoder."""


def stack_names(names: Mapping[str, str]) -> dict[str, str]:
    """The names of the encoder and the decoder, given those within a stack."""
    stacks = ("encoder", "decoder")
    return {f"{stack}.{ours}": f"model.{stack}.{theirs}" for stack in stacks for ours, theirs in names.items()}


class Bart(Family):
    """Post-norm, learned positions after two unused rows, a fixed bias of the tied output."""

    model_type = "bart"
    architecture = "full"
    prefix = "model."
    classes = {
        **dict.fromkeys(GENERATIVE, "BartForConditionalGeneration"),
        "classification": "BartForSequenceClassification",
    }
    names = {"embedding.tokens": "model.shared", **stack_names({**STACK, "embed_norm": "layernorm_embedding"})}
    heads = {
        **{
            key: {"head.output.weight": "lm_head.weight", "head.output.bias": "final_logits_bias"} for key in GENERATIVE
        },
        "classification": {"head.dense": "classification_head.dense", "head.output": "classification_head.out_proj"},
    }
    own_if_untied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    copies = dict.fromkeys(own_if_untied, "model.shared.weight")
    tied_copies = {"lm_head.weight": "model.shared.weight"}
    sizes = {
        "d_model": "d_model",
        "num_layers": "encoder_layers",
        "num_heads": "encoder_attention_heads",
        "d_ff": "encoder_ffn_dim",
        "vocab_size": "vocab_size",
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
            **self.plain_settings(config),
            "shape.max_length": config.size("max_position_embeddings"),
            **{f"model.decoder.{ours}": config.size(theirs) for ours, theirs in DECODER_SIZES.items()},
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
            **{theirs: model[f"decoder.{ours}"] for ours, theirs in DECODER_SIZES.items()},
            "max_position_embeddings": max(model["encoder.max_length"], model["decoder.max_length"]),
            **self.plain_config(model),
            "activation_function": hf_activation(model, "encoder"),
            "scale_embedding": model["embedding.scale_embedding"],
            "tie_word_embeddings": model["tie_word_embeddings"] or model["head.pooling"] != "none",
        }

    def shapes(self, config: HFConfig) -> Mapping[str, tuple[int, ...]]:
        return {"final_logits_bias": (1, -1)}
