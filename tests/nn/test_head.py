"""Pools against plain loops."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from parts import NORMS
from small_models import randomize
from triptych.nn import Head, LayerNorm

masks = st.integers(1, 6).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4)
)


def pooled(states: Tensor, mask: list[bool], pool: str) -> Tensor:
    real = [state for state, is_real in zip(states, mask, strict=True) if is_real]
    if pool == "mean":
        return sum(real) / len(real)
    return real[0] if pool == "first" else real[-1]


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@given(mask=masks)
def test_pools_are_plain_loops(pool: str, mask: list[list[bool]]) -> None:
    head = randomize(Head(d_model=5, num_outputs=3, pooling=pool, bias="trained"))
    states = torch.randn(len(mask), len(mask[0]), 5)
    logits = head(states, torch.tensor(mask))
    assert logits.isfinite().all()
    for row, row_mask in enumerate(mask):
        if any(row_mask):
            assert_close(logits[row], head.output(pooled(states[row], row_mask, pool)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", ["none", "first", "last", "mean"])
def test_without_a_mask_every_position_is_real(pool: str) -> None:
    head = randomize(Head(d_model=5, num_outputs=3, pooling=pool))
    states = torch.randn(2, 4, 5)
    assert_close(head(states), head(states, torch.ones(2, 4, dtype=torch.bool)))


def test_without_a_pool_each_position_has_its_logits() -> None:
    head = randomize(Head(d_model=5, num_outputs=3, bias="trained"))
    states = torch.randn(2, 4, 5)
    assert_close(head(states), states @ head.output.weight.T + head.output.bias)


def test_dropout_acts_in_training_only() -> None:
    head = Head(d_model=500, num_outputs=3, dropout=0.5)
    states = torch.randn(2, 4, 500)
    assert not torch.allclose(head(states), head.output(states))
    assert_close(head.eval()(states), head.output(states))


@pytest.mark.parametrize("transform", ["tanh", "gelu", "silu"])
@pytest.mark.parametrize("norm", ["none", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("scale_states", [False, True])
def test_transform_is_the_formula(transform: str, norm: str, scale_states: bool) -> None:
    part = partial(NORMS[norm], eps=0.1) if norm in NORMS else None
    options = {"transform": transform, "norm": part, "scale_states": scale_states, "bias": "trained"}
    head = randomize(Head(d_model=16, num_outputs=3, **options)).double()
    states = torch.randn(2, 4, 16, dtype=torch.float64)
    x = states @ head.dense.weight.T + head.dense.bias
    x = {"tanh": torch.tanh(x), "gelu": x * (1 + torch.erf(x / 2**0.5)) / 2, "silu": x * torch.sigmoid(x)}[transform]
    if norm == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    if norm != "none":
        x = x / ((x**2).mean(-1, keepdim=True) + 0.1).sqrt() * head.norm.weight
    if norm == "layer_norm":
        x = x + head.norm.bias
    assert_close(head(states), (x / 4 if scale_states else x) @ head.output.weight.T + head.output.bias)


def test_a_fixed_bias_is_added_and_not_trained() -> None:
    head = Head(d_model=5, num_outputs=3, bias="fixed")
    head.output.bias.data = torch.tensor([1.0, 2.0, 3.0])
    states = torch.randn(2, 4, 5)
    head(states).sum().backward()
    assert head.output.bias.grad is None
    assert_close(head(states), states @ head.output.weight.T + torch.tensor([1.0, 2.0, 3.0]))


def test_a_norm_without_a_layer_to_follow_is_rejected() -> None:
    with pytest.raises(ValueError, match="norm follows the transform"):
        Head(d_model=8, num_outputs=3, norm=LayerNorm)


@pytest.mark.parametrize("softcap", [0.0, -1.0])
def test_a_cap_is_positive(softcap: float) -> None:
    with pytest.raises(ValueError, match=r"^heads\.\*\.softcap=.*: expected more than 0"):
        Head(d_model=8, num_outputs=3, softcap=softcap)


def test_capped_logits_are_the_formula() -> None:
    head, states = randomize(Head(d_model=8, num_outputs=3, softcap=0.7)).double(), 5 * torch.randn(2, 4, 8).double()
    assert_close(head(states), 0.7 * torch.tanh(states @ head.output.weight.T / 0.7))
    assert float(head(states).detach().abs().max()) > 0.69
