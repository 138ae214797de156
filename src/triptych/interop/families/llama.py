"""LLaMA 1, 2 and 3 (Touvron et al. 2023, Dubey et al. 2024).

Tested by tests/interop/test_decoder_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.config import ConfigError
from triptych.interop.families.equivalences import rope_scaling
from triptych.interop.families.family import DECODER_CLASSES, Family, HFConfig, Settings, hf_activation, output_names

LAYER = "model.layers.{}."
QK_NORMS = {f"decoder.layers.{{}}.self_attention.{x}_norm": f"{LAYER}self_attn.{x}_norm" for x in "qk"}
"""The norms of queries and keys in families with them."""


class Llama(Family):
    """Pre-norm with RMS norm, rotary positions, gated feed-forward, no biases; grouped-query attention."""

    model_type = "llama"
    architecture = "decoder_only"
    prefix = "model."
    classes = {task: f"Llama{ending}" for task, ending in DECODER_CLASSES.items()}
    names = {
        "embedding.tokens": "model.embed_tokens",
        **{f"decoder.layers.{{}}.self_attention.{x}": f"{LAYER}self_attn.{x}_proj" for x in "qkvo"},
        "decoder.layers.{}.self_residual.norm": LAYER + "input_layernorm",
        **{f"decoder.layers.{{}}.feed_forward.{x}": f"{LAYER}mlp.{x}_proj" for x in ("up", "gate", "down")},
        "decoder.layers.{}.feed_forward_residual.norm": LAYER + "post_attention_layernorm",
        "decoder.final_norm": "model.norm",
    }
    heads = output_names("lm_head", "score", "score")
    tied_copies = {"lm_head.weight": "model.embed_tokens.weight"}
    buffers = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
    other_heads = (r"lm_head\..*", r"score\..*")

    numbers = {"norm.eps": ("rms_norm_eps", 1e-6), "attention.dropout": ("attention_dropout", 0.0)}

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        has_bias = config.get("attention_bias", False)
        config.expect("mlp_bias", False, [has_bias])  # in Triptych both or none
        theta, scaling = rope(config)
        return {
            **self.plain_settings(config),
            "block.attention.num_kv_heads": config.get("num_key_value_heads", None),
            "shape.head_dim": config.get("head_dim", None),
            "block/norm": "rms_norm",
            "block.feed_forward.activation": config.activation("hidden_act", "silu"),
            "block/feed_forward": "gated_mlp",
            "block.bias": has_bias,
            "block/position": "rotary",
            "block.position.theta": theta,
            "block.position.scaling": scaling,
            "block.scale_embedding": False,
            "block.tie_word_embeddings": config.get("tie_word_embeddings", False),
            "block.dropout": 0.0,
            "heads.tags.bias": "trained",
        }

    def config(self, model: Settings) -> dict[str, Any]:
        d_model, num_heads = model["decoder.d_model"], model["decoder.num_heads"]
        has_bias = bool(model["decoder.bias"] or model.get("decoder.attention.qkv_bias"))
        return {
            **self.plain_config(model),
            "num_key_value_heads": model.get("decoder.attention.num_kv_heads") or num_heads,
            # transformers requires that the heads divide d_model, whatever their width
            "head_dim": None if d_model % num_heads else model["decoder.head_dim"],
            "hidden_act": hf_activation(model, "decoder"),
            "attention_bias": has_bias,
            "mlp_bias": has_bias,
            "rope_parameters": hf_rope(model),
            # a table that is only scaled as the input becomes two tables
            "tie_word_embeddings": model["tie_word_embeddings"] and not model["embedding.scale_embedding"],
        }


def rope(
    config: HFConfig, *, theta_key: str = "rope_theta", reads_share: bool = False
) -> tuple[float, dict[str, Any] | None]:
    """The base of the frequencies, and their scaling: rope_parameters, or rope_theta and rope_scaling of old files.

    Args:
        config: theirs.
        theta_key: of the base in old files.
        reads_share: whether the family supports partial_rotary_factor; otherwise it must be 1.
    """
    name = "rope_scaling" if config.get("rope_scaling", None) else "rope_parameters"
    values = config.get(name, None) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{config.place}: {name}={values}; expected an object")
    parameters = HFConfig(values, f"{config.place}: {name}")
    key = "rope_type" if "rope_type" in values else "type"
    parameters.expect(key, "default", ["default", "linear", "llama3"])
    for place in () if reads_share else (config, parameters):
        place.expect("partial_rotary_factor", None, [None, 1.0])
    theta = parameters.get("rope_theta", config.get(theta_key, 10000.0))
    kind = parameters.get(key, "default")
    if kind == "default":
        return theta, None
    scaling = {"_target_": "triptych.nn.RopeScaling", "factor": parameters["factor"]}
    if kind == "llama3":
        length = config.size("max_position_embeddings")
        scaling |= {
            "low_rotations": parameters["low_freq_factor"],
            "high_rotations": parameters["high_freq_factor"],
            "original_length": parameters.get("original_max_position_embeddings", length),
        }
    return theta, scaling


def hf_rope(model: Settings, stack: str = "decoder") -> dict[str, Any]:
    """Their rope_parameters."""
    theta, scaling = model.get(f"{stack}.position.theta", 10000.0), rope_scaling(model, stack)
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    if scaling.original_length is None:
        return {"rope_type": "linear", "rope_theta": theta, "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_rotations,
        "high_freq_factor": scaling.high_rotations,
        "original_max_position_embeddings": scaling.original_length,
    }
