"""Weights that take up a difference of settings: the network of the other settings then is the same function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor, nn

from triptych.config import build
from triptych.interop.equivalences import absorb, canonical
from triptych.interop.networks import configuration
from triptych.resume import flat

LENGTH = 7
SIZES = {"d_model": 8, "num_layers": 2, "num_heads": 4, "d_ff": 12, "vocab_size": 11, "max_length": LENGTH}
SHAPE = {f"shape.{key}": value for key, value in SIZES.items()}

ANY = {
    "block.norm": st.sampled_from(["layer", "rms"]),
    "block.norm_position": st.sampled_from(["pre", "post"]),
    "block.embed_norm": st.booleans(),
    "block.activation": st.sampled_from(["relu", "gelu", "silu"]),
    "block.gated": st.booleans(),
    "block.head_dim": st.sampled_from([None, 4]),
    "block.windows": st.sampled_from([None, [2], [None, 3]]),
    "heads.tokens.transform": st.sampled_from(["none", "relu"]),
}
"""What both have, whatever it is."""

MINE_AND_THEIRS: dict[str, list[tuple[Any, Any]]] = {
    "block.bias": [(True, True), (False, False), (False, True)],
    "block.qkv_bias": [(None, None), (False, True), (True, True)],
    "block.num_kv_heads": [(2, 2), (1, None), (1, 2), (2, 4)],
    "block.qk_scale": [(None, None), (0.3, None), (None, 1.0)],
    "block.num_token_types": [(0, 0), (0, 2)],
    "heads.tokens.bias": [("none", "none"), ("none", "trained"), ("fixed", "trained"), ("trained", "fixed")],
}
"""What may differ, with its values."""

POSITIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"block.position": mine, "block.first_position": before},
        {"block.position": theirs, "block.first_position": after},
    )
    for mine, before, theirs, after in [
        ("sinusoidal", 0, "sinusoidal", 0),
        ("sinusoidal", 0, "learned", 0),
        ("sinusoidal", 2, "learned", 0),
        ("sinusoidal", 0, "learned", 2),
        ("learned", 0, "learned", 0),
        ("learned", 3, "learned", 0),
        ("learned", 1, "learned", 2),
        ("rotary", 0, "rotary", 2),
        ("relative", 1, "relative", 0),
    ]
]
TABLES = [
    (True, True, True, True),
    (False, True, False, True),
    (True, True, True, False),
    (True, True, False, False),
    (True, False, False, False),
]
"""scale_embedding and tie_output, of mine and then of theirs."""


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two settings of the same function."""
    mine = {key: draw(strategy) for key, strategy in ANY.items()}
    theirs = dict(mine)
    for key, values in MINE_AND_THEIRS.items():
        mine[key], theirs[key] = draw(st.sampled_from(values))
    mine_placed, theirs_placed = draw(st.sampled_from(POSITIONS))
    (mine["block.scale_embedding"], mine["block.tie_output"], *rest) = draw(st.sampled_from(TABLES))
    theirs["block.scale_embedding"], theirs["block.tie_output"] = rest
    if theirs["block.bias"] and not mine["block.bias"] and mine["block.qkv_bias"]:
        theirs["block.qkv_bias"] = True
    return mine | mine_placed, theirs | theirs_placed


def network(architecture: str, choices: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The network, and its canonical settings."""
    config = configuration(architecture, "denoising", SHAPE | choices, SIZES["vocab_size"])
    return build(config, "model"), canonical(flat(OmegaConf.to_container(config.model, resolve=True)))


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    """Of four texts, one of them shorter."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(SIZES["vocab_size"], (4, LENGTH), generator=generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, 4:] = False
    source = {"source": tokens, "source_mask": mask} if model.architecture == "full" else {}
    return model.double()(tokens=tokens.flip(1), mask=mask, **source)[mask]


@settings(max_examples=40)
@given(architecture=st.sampled_from(["encoder_only", "decoder_only", "full"]), both=pairs())
def test_weights_take_up_what_they_can(
    architecture: str, both: tuple[dict[str, Any], dict[str, Any]], randomize: Callable[..., Any]
) -> None:
    (mine, my_settings), (theirs, their_settings) = (network(architecture, of_one) for of_one in both)
    mine, theirs = randomize(mine).double(), randomize(theirs).double()
    state = dict(mine.state_dict())
    assert absorb(state, my_settings, their_settings) == []
    theirs.load_state_dict(state)
    assert float((logits(mine) - logits(theirs)).abs().max()) < 1e-12


BASE = {"block.activation": "relu", "block.position": "learned"}


@pytest.mark.parametrize(
    ("changes", "obstacles"),
    [
        ({"block.norm": "rms"}, ["norm"]),
        ({"block.norm_eps": 1e-3}, ["norm_eps"]),
        ({"block.norm_position": "post"}, ["norm_position"]),
        ({"block.embed_norm": True}, ["embed_norm"]),
        ({"block.activation": "gelu"}, ["activation"]),
        ({"block.gated": True}, ["gated"]),
        ({"block.bias": False}, ["bias", "qkv_bias"]),
        ({"block.num_kv_heads": 2}, ["num_kv_heads"]),
        ({"block.head_dim": 4}, ["head_dim", "qk_scale"]),
        ({"block.windows": [3]}, ["windows"]),
        ({"block.position": "sinusoidal"}, ["position"]),
        ({"block.position": "rotary"}, ["position"]),
        ({"shape.max_length": 9}, ["max_length"]),
        ({"shape.d_ff": 9}, ["d_ff"]),
        ({"shape.num_layers": 1}, ["num_layers", "windows"]),
        ({"block.position": "rotary", "block.rope_theta": 9.0}, ["position"]),
        ({"heads.tokens.transform": "relu", "heads.tokens.norm": "layer"}, ["transform", "norm"]),
        ({"block.scale_embedding": False}, ["scale_embedding"]),
        ({"heads.tokens.scale_states": True}, ["scale_states"]),
    ],
    ids=str,
)
def test_names_what_they_cannot(changes: dict[str, Any], obstacles: list[str]) -> None:
    mine, my_settings = network("decoder_only", BASE)
    _, their_settings = network("decoder_only", BASE | changes)
    named = {key.rpartition(".")[2] for key in absorb(dict(mine.state_dict()), my_settings, their_settings)}
    assert named <= set(obstacles)
    assert obstacles[0] in named


def test_frequencies_that_differ_stand_in_the_way() -> None:
    def scaled(factor: float, **more: Any) -> dict[str, Any]:
        scaling = {"_target_": "triptych.nn.RopeScaling", "factor": factor, **more}
        return {"block.position": "rotary", "block.rope_scaling": scaling}

    mine, my_settings = network("decoder_only", scaled(2.0))
    state = dict(mine.state_dict())
    assert absorb(state, my_settings, network("decoder_only", scaled(2.0, low_rotations=1.0))[1]) == []
    for other in (scaled(3.0), scaled(2.0, original_length=5), {"block.position": "rotary"}):
        assert absorb(state, my_settings, network("decoder_only", other)[1]) == ["decoder.rope_scaling"]
