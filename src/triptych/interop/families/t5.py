"""T5 (Raffel et al. 2020), 1.0 and 1.1.

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from triptych.config import ConfigError, suggestion
from triptych.interop.families.bart import GENERATIVE
from triptych.interop.families.family import ACTIVATIONS, Family, HFConfig, Settings, attention_names

PROJECTIONS = {
    "gated-gelu": ("gelu_tanh", True),  # sic; gated-gelu_python is the exact one
    **{name: (activation, False) for name, activation in ACTIVATIONS.items()},
    **{f"gated-{name}": (activation, True) for name, activation in ACTIVATIONS.items() if name != "gelu"},
}
"""By feed_forward_proj: our activation, and whether it is gated."""

TOKENS, HEAD = "transformer.shared.weight", "transformer.lm_head.weight"


def feed_forward(ours: str, theirs: str) -> dict[str, str]:
    """The names of a feed-forward sub-layer."""
    return {
        f"{ours}.feed_forward.up": f"{theirs}.DenseReluDense.wi",
        f"{ours}.feed_forward.gate": f"{theirs}.DenseReluDense.wi_0",
        f"{ours}.feed_forward.down": f"{theirs}.DenseReluDense.wo",
        f"{ours}.feed_forward_residual.norm": f"{theirs}.layer_norm",
    }


def stack(name: str) -> dict[str, str]:
    """The names that the encoder and the decoder share."""
    ours, theirs = f"{name}.layers.{{}}", f"transformer.{name}.block.{{}}.layer"
    return {
        f"{name}.position.table": f"transformer.{name}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{name}.final_norm": f"transformer.{name}.final_layer_norm",
        f"{ours}.self_residual.norm": f"{theirs}.0.layer_norm",
        **attention_names(f"{ours}.self_attention", f"{theirs}.0.SelfAttention."),
    }


class T5(Family):
    """Pre-norm with RMS norm, relative positions, no biases, unscaled attention scores.

    1.0 ties the output layer and scales its input; 1.1 does neither, and has a gated feed-forward.
    """

    model_type = "t5"
    architecture = "full"
    prefix = "transformer."
    bare = GENERATIVE
    classes = {
        **dict.fromkeys(GENERATIVE, "T5ForConditionalGeneration"),
        "classification": "T5ForSequenceClassification",
    }
    names = {
        "embedding.tokens": "transformer.shared",
        **stack("encoder"),
        **feed_forward("encoder.layers.{}", "transformer.encoder.block.{}.layer.1"),
        **stack("decoder"),
        **attention_names("decoder.layers.{}.cross_attention", "transformer.decoder.block.{}.layer.1.EncDecAttention."),
        "decoder.layers.{}.cross_residual.norm": "transformer.decoder.block.{}.layer.1.layer_norm",
        **feed_forward("decoder.layers.{}", "transformer.decoder.block.{}.layer.2"),
    }
    heads = {
        **{key: {"head.output.weight": HEAD} for key in GENERATIVE},
        "classification": {"head.dense": "classification_head.dense", "head.output": "classification_head.out_proj"},
    }
    copies = {"transformer.encoder.embed_tokens.weight": TOKENS, "transformer.decoder.embed_tokens.weight": TOKENS}
    tied_copies = {HEAD: TOKENS}
    buffers = (r".*\.EncDecAttention\.relative_attention_bias\.weight",)
    other_heads = (r"transformer\.lm_head\.weight", r"classification_head\..*", r"(transformer\.)?qa_outputs\..*")
    sizes = {name: name for name in ("d_model", "num_layers", "num_heads", "d_ff", "vocab_size")}
    numbers = {"norm.eps": ("layer_norm_epsilon", 1e-6)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        depth = "num_layers" if config.get("num_decoder_layers", None) is None else "num_decoder_layers"
        projection = config.get("feed_forward_proj", "relu")
        if projection not in PROJECTIONS:
            said = f"{config.place}: feed_forward_proj={projection}"
            raise ConfigError(f"{said}{suggestion(str(projection), list(PROJECTIONS))}")
        activation, is_gated = PROJECTIONS[projection]
        is_tied = config.get("tie_word_embeddings", True)  # transformers 5 writes true for an untied model
        if HEAD in tensors and TOKENS in tensors:
            is_tied = torch.equal(tensors[HEAD], tensors[TOKENS])
        return {
            **self.plain_settings(config),
            "shape.max_length": config.get("n_positions", 512),
            "model.decoder.num_layers": config.size(depth),
            "block/norm": "rms_norm",
            "block/residual": "pre_norm",
            "block.feed_forward.activation": activation,
            "block/feed_forward": "gated_mlp" if is_gated else "mlp",
            "block.bias": False,
            "shape.head_dim": config.size("d_kv"),
            "block.attention.scale": 1.0,
            "block/position": "relative_bias",
            "block.position.num_buckets": config.get("relative_attention_num_buckets", 32),
            "block.position.max_distance": config.get("relative_attention_max_distance", 128),
            "block.scale_embedding": False,
            "block.tie_word_embeddings": is_tied,
            "block.dropout": config.get("dropout_rate", 0.1),
            "block.attention.dropout": config.get("dropout_rate", 0.1),
            "block.feed_forward.dropout": config.get("dropout_rate", 0.1),
            "heads.tokens.scale_states": config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)),
            "heads.classes.transform": "tanh",
            "heads.classes.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        is_gated = str(model["encoder.feed_forward._target_"]).endswith(".GatedFeedForward")
        kind = (model.get("encoder.feed_forward.activation"), is_gated)
        is_scaled = model["tie_word_embeddings"] and model["head.scale_states"] != model["embedding.scale_embedding"]
        return {
            **self.plain_config(model),
            "num_decoder_layers": model["decoder.num_layers"],
            "d_kv": model["encoder.head_dim"] or model["encoder.d_model"] // model["encoder.num_heads"],
            "n_positions": model["encoder.max_length"],
            "feed_forward_proj": next((name for name, value in PROJECTIONS.items() if value == kind), "relu"),
            "relative_attention_num_buckets": model.get("encoder.position.num_buckets", 32),
            "relative_attention_max_distance": model.get("encoder.position.max_distance", 128),
            "tie_word_embeddings": is_scaled or model["head.pooling"] != "none",  # the output is scaled, too
            "dropout_rate": model["encoder.dropout"],
        }

    def hf_name(self, ours: str, task: str, config: HFConfig) -> tuple[str, int | None]:
        theirs, part = super().hf_name(ours, task, config)
        is_gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
        return theirs.replace(".wi.", ".wi_1.") if is_gated else theirs, part
