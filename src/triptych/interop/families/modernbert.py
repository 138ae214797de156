"""ModernBERT (Warner et al. 2024), and the encoders of Ettin (Weller et al. 2025).

Tested by tests/interop/test_encoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.family import ENCODER_CLASSES, HF_ACTIVATIONS, Family, HFConfig, Settings, hf_activation
from triptych.interop.families.layer_types import FULL, SLIDING, hf_layer_types, layer_windows
from triptych.interop.families.llama import hf_rope, rope

LAYER = "model.layers.{}."
SUBLAYERS = {
    "self_attention.o": "attn.Wo",
    "self_residual.norm": "attn_norm",
    "feed_forward.gate": "mlp.Wi[0]",
    "feed_forward.up": "mlp.Wi[1]",
    "feed_forward.down": "mlp.Wo",
    "feed_forward_residual.norm": "mlp_norm",
}
HEAD = {"head.dense": "head.dense", "head.norm": "head.norm"}


def names_of(stack: str, attention: Mapping[str, str]) -> dict[str, str]:
    """The names of the body.

    Args:
        stack: encoder or decoder.
        attention: their names of the projections to queries, keys and values, by ours.
    """
    return {
        "embedding.tokens": "model.embeddings.tok_embeddings",
        f"{stack}.embed_norm": "model.embeddings.norm",
        f"{stack}.final_norm": "model.final_norm",
        **{f"{stack}.layers.{{}}.{ours}": LAYER + theirs for ours, theirs in {**attention, **SUBLAYERS}.items()},
    }


class ModernBert(Family):
    """Pre-norm, but the first block reads embeddings that are already normalised. Gated feed-forward; two of three
    layers have a window, and another rotary base; norms and most layers have no bias.

    Predictions use norm(act(x W)).
    """

    model_type = "modernbert"
    architecture = "encoder_only"
    prefix = "model."
    classes = {task: f"ModernBert{ending}" for task, ending in ENCODER_CLASSES.items()}
    names = names_of("encoder", {f"self_attention.{kind}": f"attn.Wqkv[{i}]" for i, kind in enumerate("qkv")})
    heads = {
        "denoising": {**HEAD, "head.output": "decoder"},
        **{key: {**HEAD, "head.output": "classifier"} for key in ("classification", "tagging", "question_answering")},
    }
    tied_copies = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
    other_heads = (r"(lm_)?head\..*", r"decoder\..*", r"classifier\..*")
    numbers = {
        "norm.eps": ("norm_eps", 1e-5),
        "dropout": ("embedding_dropout", 0.0),
        "attention.dropout": ("attention_dropout", 0.0),
        "feed_forward.dropout": ("mlp_dropout", 0.0),
    }

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        heads = {"cls": "modernbert", "mean": "modernbert-mean"}
        config.expect("classifier_pooling", "cls", heads)
        return {
            **modernbert_settings(config, config.size("local_attention") // 2 + 1),
            **self.plain_settings(config),
            "head@heads.classes": heads[config.get("classifier_pooling", "cls")],
            "heads.classes.bias": "trained",
            "heads.tags.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several window widths, the first."""
        window = hf_layer_types(model, "encoder")[1]
        return {
            **config_of(model, "encoder"),
            **self.plain_config(model),
            "local_attention": 128 if window is None else 2 * (window - 1),
            "classifier_pooling": "mean" if model["head.pooling"] == "mean" else "cls",
        }


def modernbert_settings(config: HFConfig, window: int) -> Settings:
    """Our settings that the encoder and the decoder share by name.

    Args:
        config: theirs.
        window: of layers that have one.
    """
    has_bias = config.get("attention_bias", False)
    config.expect("mlp_bias", False, [has_bias])  # in Triptych both or none
    config.expect("rope_scaling", None, [None])
    every = config.get("global_attn_every_n_layers", 3)
    kinds = [SLIDING if i % every else FULL for i in range(config.size("num_hidden_layers"))]
    rotations, length = config.get("rope_parameters", None) or {}, config.size("max_position_embeddings")

    def rope_of(kind: str, theta: float) -> tuple[float, dict[str, Any] | None]:
        values = {"rope_parameters": rotations.get(kind), "rope_theta": theta, "max_position_embeddings": length}
        return rope(HFConfig(values, f"{config.place}: {kind}"))

    theta, scaling = rope_of(FULL, config.get("global_rope_theta", 160000.0))
    local_theta, local_scaling = rope_of(SLIDING, config.get("local_rope_theta", 10000.0))
    if local_scaling is not None:
        raise ConfigError(f"{config.place}: rope_parameters of {SLIDING} are scaled; expected rope_type=default")
    transform = {"transform": config.activation("classifier_activation", "gelu")}
    transform |= {"transform_bias": config.get("classifier_bias", False)}
    return {
        "block.norm.bias": config.get("norm_bias", False),
        "block.embed_norm": True,
        "block.first_norm": False,
        "block.attention.sliding_windows": layer_windows(config, kinds, window),
        "block/feed_forward": "gated_mlp",
        "block.feed_forward.activation": config.activation("hidden_activation", "gelu"),
        "block.bias": has_bias,
        "block/position": "rotary",
        "block.position.theta": theta,
        "block.position.local_theta": local_theta,
        "block.position.scaling": scaling,
        "block.scale_embedding": False,
        "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
        **{f"head@heads.{kind}": "modernbert" for kind in ("tokens", "classes", "tags")},
        **{f"heads.{kind}.{key}": value for kind in ("tokens", "classes", "tags") for key, value in transform.items()},
        "heads.tokens.bias": "trained" if config.get("decoder_bias", True) else "none",
    }


def config_of(model: Settings, stack: str) -> dict[str, Any]:
    """Their configuration that the encoder and the decoder share by name."""
    local_theta = model.get(f"{stack}.position.local_theta") or model.get(f"{stack}.position.theta", 10000.0)
    is_pooled = model["head.pooling"] != "none"
    return {
        "norm_bias": model.get(f"{stack}.norm.bias", False),
        "layer_types": hf_layer_types(model, stack)[0],
        "hidden_activation": hf_activation(model, stack),
        "attention_bias": bool(model[f"{stack}.bias"]),
        "mlp_bias": bool(model[f"{stack}.bias"]),
        "rope_parameters": {FULL: hf_rope(model, stack), SLIDING: {"rope_type": "default", "rope_theta": local_theta}},
        # a table that is only scaled as the input becomes two tables
        "tie_word_embeddings": is_pooled or (model["tie_word_embeddings"] and not model["embedding.scale_embedding"]),
        "classifier_activation": HF_ACTIVATIONS.get(model["head.transform"], "gelu"),
        "classifier_bias": model["head.transform_bias"],
        "decoder_bias": model["head.bias"] != "none",
    }
