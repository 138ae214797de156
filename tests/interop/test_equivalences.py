"""Weights that take up a difference of settings: the network of the other settings then is the same function."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor, nn

from small_models import randomize
from triptych.config import build, flat
from triptych.interop.families.equivalences import absorb, canonical
from triptych.interop.networks import configuration

LENGTH = 7
SIZES = {"d_model": 8, "num_layers": 2, "num_heads": 4, "d_ff": 12, "vocab_size": 11, "max_length": LENGTH}
SHAPE = {f"shape.{key}": value for key, value in SIZES.items()}

ANY = {
    "block/norm": st.sampled_from(["layer_norm", "rms_norm"]),
    "block/residual": st.sampled_from(["pre_norm", "post_norm"]),
    "block.embed_norm": st.booleans(),
    "block.feed_forward.activation": st.sampled_from(["relu", "gelu", "silu", "relu_squared"]),
    "block/feed_forward": st.sampled_from(["mlp", "gated_mlp"]),
    "shape.head_dim": st.sampled_from([None, 4]),
    "block.attention.sliding_windows": st.sampled_from([None, [2], [None, 3]]),
    "heads.tokens.transform": st.sampled_from(["none", "relu"]),
}
"""What both have, whatever it is."""

Change = tuple[dict[str, Any], dict[str, Any]]
"""Settings of mine and of theirs that make the same function, if the weights take up the difference."""


def changes(keys: list[str], *values: tuple[tuple[Any, ...], tuple[Any, ...]]) -> list[Change]:
    """The values of these settings in mine and in theirs."""
    return [(dict(zip(keys, mine, strict=True)), dict(zip(keys, theirs, strict=True))) for mine, theirs in values]


CHANGES: list[list[Change]] = [
    changes(
        ["block.bias", "block.attention.qkv_bias"], ((False, None), (True, None)), ((True, False), (True, True)),
        ((False, True), (True, None)), ((False, False), (False, True)),
    ),
    changes(
        ["block.bias", "block.attention.qkv_bias", "block.attention.k_bias"],
        ((True, None, True), (True, None, False)),
        ((True, None, False), (True, None, True)),
        ((False, None, True), (True, None, False)),
        ((False, None, False), (True, None, True)),
        ((True, False, False), (True, True, True)),
    ),
    changes(["block.attention.num_kv_heads"], ((1,), (None,)), ((1,), (2,)), ((2,), (4,))),
    changes(["block.attention.scale"], ((0.3,), (None,)), ((None,), (1.0,))),
    changes(["block.num_token_types"], ((0,), (2,))),
    changes(["heads.tokens.bias"], (("none",), ("trained",)), (("none",), ("fixed",)), (("fixed",), ("trained",))),
    changes(
        ["block/position", "block.position.first"],
        (("sinusoidal", 0), ("learned", 0)),
        (("sinusoidal", 2), ("learned", 0)),
        (("sinusoidal", 0), ("learned", 2)),
        (("learned", 3), ("learned", 0)),
        (("learned", 1), ("learned", 2)),
    ),
    changes(
        ["block.scale_embedding", "block.tie_word_embeddings"],
        ((True, True), (True, False)),
        ((True, True), (False, False)),
        ((True, False), (False, False)),
    ),
    changes(["heads.tokens.scale_states", "block.tie_word_embeddings"], ((True, False), (False, False))),
]  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> Change:
    """Any settings, and some changes at once."""
    mine = {key: draw(strategy) for key, strategy in ANY.items()}
    theirs = dict(mine)
    for alternatives in CHANGES:
        one, other = draw(st.sampled_from([({}, {}), *alternatives]))
        mine, theirs = mine | one, theirs | other
    return mine, theirs


def network(architecture: str, choices: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The network, and its canonical settings."""
    config = configuration(architecture, "denoising", SHAPE | choices, SIZES["vocab_size"])
    model = OmegaConf.to_container(config.model, resolve=True)
    return build(OmegaConf.create({"model": model}), "model"), canonical(flat(model))


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    """Of four texts, one of them shorter."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(SIZES["vocab_size"], (4, LENGTH), generator=generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, 4:] = False
    source = {"source": tokens, "source_mask": mask} if model.architecture == "full" else {}
    return model.double()(tokens=tokens.flip(1), mask=mask, **source)[mask]


def check(architecture: str, both: Change) -> None:
    (mine, my_settings), (theirs, their_settings) = (network(architecture, of_one) for of_one in both)
    mine, theirs = randomize(mine).double(), randomize(theirs).double()
    state = dict(mine.state_dict())
    assert absorb(state, my_settings, their_settings) == []
    theirs.load_state_dict(state)
    assert float((logits(mine) - logits(theirs)).abs().max()) < 1e-12


@pytest.mark.parametrize("change", [change for alternatives in CHANGES for change in alternatives], ids=str)
def test_weights_take_up_a_change(change: Change) -> None:
    check("decoder_only", change)


@pytest.mark.nightly
@given(architecture=st.sampled_from(["encoder_only", "decoder_only", "full"]), both=pairs())
def test_weights_take_up_changes_together(architecture: str, both: Change) -> None:
    check(architecture, both)


BASE = {"block.feed_forward.activation": "relu", "block/position": "learned"}


@pytest.mark.parametrize(
    ("other", "obstacles"),
    [
        ({"block/norm": "rms_norm"}, ["norm"]),
        ({"block.norm.eps": 1e-3}, ["norm.eps"]),
        ({"block/residual": "post_norm"}, ["residual"]),
        ({"block/residual": "parallel"}, ["residual"]),
        ({"block/residual": "sandwich_norm"}, ["residual"]),
        ({"block/residual": "parallel_norms"}, ["residual"]),
        ({"block/residual": "res_post_norm"}, ["residual"]),
        ({"block.first_norm": False}, ["first_norm"]),
        ({"block.norm.bias": False}, ["norm.bias"]),
        ({"block.embed_norm": True}, ["embed_norm"]),
        ({"block.feed_forward.activation": "gelu"}, ["feed_forward.activation"]),
        ({"block/feed_forward": "gated_mlp"}, ["feed_forward"]),
        ({"block.bias": False}, ["bias", "attention.qkv_bias"]),
        ({"block.attention.num_kv_heads": 2}, ["attention.num_kv_heads"]),
        ({"shape.head_dim": 4}, ["head_dim", "attention.scale"]),
        ({"block.attention.sliding_windows": [3]}, ["attention.sliding_windows"]),
        ({"block/attention": "qk_norm"}, ["attention.qk_norm"]),
        ({"block.attention.softcap": 2.0}, ["attention.softcap"]),
        ({"heads.tokens.softcap": 2.0}, ["softcap"]),
        ({"block/position": "sinusoidal"}, ["position"]),
        ({"block/position": "rotary"}, ["position"]),
        ({"block/position": "alibi"}, ["position"]),
        ({"shape.max_length": 9}, ["max_length"]),
        ({"shape.d_ff": 9}, ["d_ff"]),
        ({"shape.num_layers": 1}, ["num_layers", "attention.sliding_windows"]),
        ({"block/position": "rotary", "block.position.theta": 9.0}, ["position"]),
        (
            {"head@heads.tokens": "bert", "heads.tokens.transform": "relu", "heads.tokens.bias": "none"},
            ["transform", "norm"],
        ),
        ({"block.scale_embedding": False}, ["scale_embedding"]),
        ({"heads.tokens.scale_states": True}, ["scale_states"]),
    ],
    ids=str,
)
def test_names_what_they_cannot(other: dict[str, Any], obstacles: list[str]) -> None:
    mine, my_settings = network("decoder_only", BASE)
    _, their_settings = network("decoder_only", BASE | other)
    named = {key.partition(".")[2] for key in absorb(dict(mine.state_dict()), my_settings, their_settings)}
    assert named <= set(obstacles)
    assert obstacles[0] in named


@pytest.mark.parametrize(
    "parts", [{"block/position": "rotary"}, {"block/attention": "qk_norm"}, {"block.attention.softcap": 2.0}], ids=str
)
def test_a_bias_of_keys_that_scores_see_stands_in_the_way(parts: dict[str, Any]) -> None:
    mine, my_settings = network("decoder_only", BASE | parts)
    _, their_settings = network("decoder_only", BASE | parts | {"block.attention.k_bias": False})
    assert absorb(dict(mine.state_dict()), my_settings, their_settings) == ["decoder.attention.k_bias"]


def test_a_share_of_each_head_stands_in_the_way() -> None:
    rotary = BASE | {"shape.num_heads": 2, "block/position": "rotary"}
    mine, my_settings = network("decoder_only", rotary)
    _, their_settings = network("decoder_only", rotary | {"block.position.partial_rotary_factor": 0.5})
    named = {key.partition(".")[2] for key in absorb(dict(mine.state_dict()), my_settings, their_settings)}
    assert named == {"position.partial_rotary_factor"}


def test_frequencies_that_differ_stand_in_the_way() -> None:
    def scaled(factor: float, **more: Any) -> dict[str, Any]:
        scaling = {"_target_": "triptych.nn.RopeScaling", "factor": factor, **more}
        return {"block/position": "rotary", "block.position.scaling": scaling}

    mine, my_settings = network("decoder_only", scaled(2.0))
    state = dict(mine.state_dict())
    assert absorb(state, my_settings, network("decoder_only", scaled(2.0, low_rotations=1.0))[1]) == []
    for other in (scaled(3.0), scaled(2.0, original_length=5), {"block/position": "rotary"}):
        assert absorb(state, my_settings, network("decoder_only", other)[1]) == ["decoder.position.scaling"]


@pytest.mark.parametrize(
    ("option", "value"), [("partial_rotary_factor", 0.5), ("local_theta", 0.5), ("rotate_cross_attention", True)]
)
def test_other_options_of_rotary_positions_stand_in_the_way(option: str, value: Any) -> None:
    both = {"block/position": "rotary", "shape.d_model": 16, "block.attention.sliding_windows": [3]}
    mine, my_settings = network("decoder_only", both)
    _, their_settings = network("decoder_only", both | {f"block.position.{option}": value})
    assert absorb(dict(mine.state_dict()), my_settings, their_settings) == [f"decoder.position.{option}"]


def test_another_base_in_windows_says_nothing_where_there_are_none_or_it_is_the_same() -> None:
    rotary: dict[str, Any] = {"block/position": "rotary", "shape.d_model": 16}
    mine, my_settings = network("decoder_only", rotary)
    _, theirs = network("decoder_only", rotary | {"block.position.local_theta": 5.0})
    assert absorb(dict(mine.state_dict()), my_settings, theirs) == []
    windows = rotary | {"block.attention.sliding_windows": [3]}
    mine, my_settings = network("decoder_only", windows)
    _, theirs = network("decoder_only", windows | {"block.position.local_theta": 10000.0})
    assert absorb(dict(mine.state_dict()), my_settings, theirs) == []


def test_what_only_training_looks_at_is_no_setting_of_a_network() -> None:
    model = {"encoder.dropout": 0.1, "encoder.activation_checkpointing": True, "embedding._partial_": True, "tie": 1}
    assert {"encoder.dropout", "encoder.activation_checkpointing", "embedding._partial_"}.isdisjoint(canonical(model))
