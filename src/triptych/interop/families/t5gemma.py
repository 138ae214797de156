"""T5Gemma (Zhang et al. 2025).

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triptych.interop.families.bart import GENERATIVE
from triptych.interop.families.family import Family, HFConfig, Settings, hf_activation
from triptych.interop.families.layer_types import FULL, SLIDING, hf_layer_types, layer_windows
from triptych.interop.families.llama import hf_rope, rope

FURTHER = {"encoder": 1, "decoder": 0}
"""Addition to ``sliding_window``, which includes the position itself: in transformers 5 the encoder's window also
includes that distance itself, on both sides."""
STACKS = {"encoder": ("self",), "decoder": ("self", "cross")}
"""The kinds of attention of each stack."""
ALIKE = ("hidden_size", "head_dim", "vocab_size", "rms_norm_eps", "hidden_activation", "rope_parameters", "rope_theta")
"""Settings that must be equal in the encoder and the decoder."""


def layer(stack: str) -> dict[str, str]:
    """The names of a layer: each sub-layer has a norm before and after it."""
    ours, theirs = f"{stack}.layers.{{}}", f"model.{stack}.layers.{{}}"
    sublayers = {**{kind: f"{kind}_attn" for kind in STACKS[stack]}, "feed_forward": "feedforward"}
    return {
        **{f"{ours}.{kind}_attention.{x}": f"{theirs}.{kind}_attn.{x}_proj" for kind in STACKS[stack] for x in "qkvo"},
        **{f"{ours}.feed_forward.{x}": f"{theirs}.mlp.{x}_proj" for x in ("up", "gate", "down")},
        **{
            f"{ours}.{residual}_residual.{norm}": f"{theirs}.{place}_{sublayer}_layernorm"
            for norm, place in (("norm", "pre"), ("output_norm", "post"))
            for residual, sublayer in sublayers.items()
        },
    }


class T5Gemma(Family):
    """The blocks of Gemma 2 (Riviere et al. 2024) on both sides, with separate token tables: norms before and after
    each sub-layer, capped scores and logits, rotary positions except in cross-attention, gated feed-forward, no biases;
    every second layer has a window.

    Its norms multiply by 1 + w, ours by w. The float32 sum is rounded, as in the published computation.
    """

    model_type = "t5gemma"
    architecture = "full"
    prefix = "model."
    classes = dict.fromkeys(GENERATIVE, "T5GemmaForConditionalGeneration")
    names = {
        "source_embedding.tokens": "model.encoder.embed_tokens",
        "embedding.tokens": "model.decoder.embed_tokens",
        **{f"{stack}.final_norm": f"model.{stack}.norm" for stack in STACKS},
        **layer("encoder"),
        **layer("decoder"),
    }
    heads = {key: {"head.output": "lm_head.out_proj"} for key in GENERATIVE}
    tied_copies = {"lm_head.out_proj.weight": "model.decoder.embed_tokens.weight"}
    parts = ("encoder", "decoder")
    other_heads = (r"lm_head\..*", r"score\..*")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        encoder, decoder = map(config.part, STACKS)
        for key in ALIKE:
            encoder.expect(key, None, [decoder.get(key, None)])
        for stack in (encoder, decoder):
            stack.expect("attention_bias", False, [False])
        theta, scaling = rope(decoder)
        dropout = config.get("dropout_rate", 0.0)
        return {
            "model/embedding@model.source_embedding": "tokens",
            **self.plain_settings(decoder),
            "shape.head_dim": decoder.size("head_dim"),
            **{f"model.encoder.{name}": encoder.size(self.sizes[name]) for name in ("num_layers", "num_heads", "d_ff")},
            "block/attention@model.encoder.attention": "multi_head",
            **attention_settings("model.encoder.attention", encoder, FURTHER["encoder"]),
            **attention_settings("block.attention", decoder, FURTHER["decoder"]),
            "block/norm": "rms_norm",
            "block.norm.eps": decoder.get("rms_norm_eps", 1e-6),
            "block/residual": "sandwich_norm",
            "block/feed_forward": "gated_mlp",
            "block.feed_forward.activation": decoder.activation("hidden_activation", "gelu_pytorch_tanh"),
            "block.bias": False,
            "block/position": "rotary",
            "block.position.theta": theta,
            "block.position.scaling": scaling,
            "block.scale_embedding": True,
            "block.tie_word_embeddings": config.get("tie_word_embeddings", True),
            "block.dropout": dropout,
            "block.feed_forward.dropout": dropout,
            "model.encoder.attention.dropout": config.get("attention_dropout", 0.0),
            "block.attention.dropout": config.get("attention_dropout", 0.0),
            "heads.tokens.softcap": decoder.get("final_logit_softcapping", 30.0),
        }

    def config(self, model: Settings) -> dict[str, Any]:
        """See ``Family``; of several window widths, the first."""
        return {
            **{stack: part(model, stack) for stack in STACKS},
            "vocab_size": model["embedding.vocab_size"],
            "tie_word_embeddings": model["tie_word_embeddings"],
            "dropout_rate": model["decoder.dropout"],
            "attention_dropout": model.get("decoder.attention.dropout", 0.0),
        }

    def reordered(self, state: Mapping[str, Tensor], config: HFConfig, *, to_ours: bool) -> Mapping[str, Tensor]:
        """See ``Family``: our w is 1 + their w."""
        one = 1 if to_ours else -1
        return {name: tensor + one if name.endswith("norm.weight") else tensor for name, tensor in state.items()}


def attention_settings(place: str, config: HFConfig, further: int) -> Settings:
    """Our settings of a stack's attention.

    Args:
        place: their place in the configuration.
        config: of the stack.
        further: see ``FURTHER``.
    """
    window, num_layers = config.get("sliding_window", 4096), config.size("num_hidden_layers")
    kinds = [FULL if i % 2 else SLIDING for i in range(num_layers)]
    return {
        f"{place}.num_kv_heads": config.size("num_key_value_heads"),
        f"{place}.scale": config.size("query_pre_attn_scalar") ** -0.5,
        f"{place}.softcap": config.get("attn_logit_softcapping", 50.0),
        f"{place}.sliding_windows": layer_windows(config, kinds, None if window is None else window + further),
    }


def part(model: Settings, stack: str) -> dict[str, Any]:
    """Their configuration of a stack; shared settings are the decoder's."""
    num_heads = model[f"{stack}.num_heads"]
    head_dim = model["decoder.head_dim"] or model["decoder.d_model"] // model["decoder.num_heads"]
    kinds, window = hf_layer_types(model, stack)
    return {
        "model_type": "t5_gemma_module",
        "vocab_size": model["embedding.vocab_size"],
        "hidden_size": model["decoder.d_model"],
        "num_hidden_layers": model[f"{stack}.num_layers"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": model.get(f"{stack}.attention.num_kv_heads") or num_heads,
        "head_dim": head_dim,
        "intermediate_size": model[f"{stack}.d_ff"],
        "max_position_embeddings": model["decoder.max_length"],
        "rms_norm_eps": model.get("decoder.norm.eps", 1e-5),
        # the same formula by another name, rounded as in published models
        "hidden_activation": hf_activation(model, "decoder").replace("gelu_new", "gelu_pytorch_tanh"),
        "rope_parameters": hf_rope(model),
        "query_pre_attn_scalar": max(1, round((model.get(f"{stack}.attention.scale") or head_dim**-0.5) ** -2)),
        "attn_logit_softcapping": model.get(f"{stack}.attention.softcap"),
        "final_logit_softcapping": model.get("head.softcap"),
        "layer_types": kinds,
        # transformers requires a number even if no layer has a window
        "sliding_window": 4096 if window is None else window - FURTHER[stack],
    }
