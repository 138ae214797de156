"""Parameters and operations against formulas written out by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.accounting import count_parameters, shape_of, training_flops
from triptych.data import Encoded, collate
from triptych.models import DecoderOnly, EncoderOnly
from triptych.nn import Head, PatchEmbedding, Stack

D, FF, LAYERS, VOCAB, LENGTH = 16, 24, 2, 11, 24  # of the models that ``build`` builds

every_architecture = pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full"])


class TestParameters:
    @every_architecture
    @pytest.mark.parametrize("tie_output", [False, True])
    @pytest.mark.parametrize("position", ["learned", "sinusoidal"])
    def test_count(self, build: Callable[..., Any], architecture: str, tie_output: bool, position: str) -> None:
        attention = 4 * (D * D + D)
        norm = 2 * D
        layer = attention + (2 * D * FF + FF + D) + 2 * norm
        stacks = LAYERS * layer + norm
        if architecture == "full":
            stacks = 2 * stacks + LAYERS * (attention + norm)
        tables = (2 if architecture == "full" else 1) * LENGTH * D if position == "learned" else 0
        embedding = VOCAB * D + tables
        head = 0 if tie_output else D * VOCAB
        model = build(architecture, tie_output=tie_output, position=position)
        assert count_parameters(model) == (embedding + stacks + head, stacks + head)

    def test_frozen_parameters_do_not_count(self, build: Callable[..., Any]) -> None:
        model = build("encoder_only")
        everything, _ = count_parameters(model)
        model.head.requires_grad_(False)
        assert count_parameters(model) == (everything - D * VOCAB, everything - D * VOCAB - VOCAB * D)


def products(queries: int, keys: int) -> int:
    """Multiply-adds of one attention sub-layer, for one row: q and o for each query, k and v for each key, scores and
    weighted sums for each pair."""
    return 2 * queries * D * D + 2 * keys * D * D + 2 * queries * keys * D


def multiply_adds(architecture: str, length: int, source: int, outputs: int) -> int:
    """Of one row, forward."""
    feed_forward = 2 * D * FF
    if architecture == "full":
        encoder = products(source, source) + source * feed_forward
        decoder = products(length, length) + products(length, source) + length * feed_forward
    else:
        encoder, decoder = 0, products(length, length) + length * feed_forward
    return LAYERS * (encoder + decoder) + outputs * D * VOCAB


def on_meta(build: Callable[..., Any], architecture: str, **options: Any) -> Any:
    with torch.device("meta"):
        return build(architecture, **options)


class TestOperations:
    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
    def test_of_images(self, architecture: str) -> None:
        """Patches of 2x3 pixels in two channels, 8 of them and [cls]; the pixels themselves need no gradient."""
        with torch.device("meta"):
            embedding = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=D)
            causal, sizes = architecture == "decoder_only", {"d_model": D, "num_heads": 4, "d_ff": FF}
            stack = Stack(num_layers=LAYERS, causal=causal, max_length=9, **sizes)
            parts: dict[str, Any] = {"embedding": embedding, "head": Head(d_model=D, num_outputs=VOCAB, pool="last")}
            network = DecoderOnly(**parts, decoder=stack) if causal else EncoderOnly(**parts, encoder=stack)
        body = multiply_adds("encoder_only", 9, 0, outputs=1)
        assert training_flops(network, {(5, 2, 4, 12): 3}) == 3 * 5 * (6 * body + 4 * 8 * 12 * D)

    @every_architecture
    @pytest.mark.parametrize("pool", ["none", "last"])
    @given(rows=st.integers(1, 4), length=st.integers(2, 9), source=st.integers(2, 9))
    def test_of_a_batch(
        self, build: Callable[..., Any], architecture: str, pool: str, rows: int, length: int, source: int
    ) -> None:
        """Two a multiply-add; the backward pass, to inputs and to weights, costs twice the forward pass."""
        source = source if architecture == "full" else 0
        forward = 2 * rows * multiply_adds(architecture, length, source, outputs=length if pool == "none" else 1)
        model = on_meta(build, architecture, pool=pool)
        assert training_flops(model, {(rows, length, source): 1}) == 3 * forward

    def test_batches_add_up(self, build: Callable[..., Any]) -> None:
        model = on_meta(build, "full")
        shapes = [(2, 3, 4), (1, 9, 2)]
        first, second = (training_flops(model, {shape: 1}) for shape in shapes)
        assert training_flops(model, dict(zip(shapes, (10, 3), strict=True))) == 10 * first + 3 * second
        assert training_flops(model, {}) == 0


def test_the_shape_of_a_batch_of_images() -> None:
    batch = collate([Encoded(np.zeros((2, 4, 12), dtype=np.float32), np.array([1]))] * 3)
    assert shape_of(batch) == (3, 2, 4, 12)
    assert (batch.num_real, batch.num_slots, batch.mask) == (3, 3, None)


@pytest.mark.parametrize("source", [None, np.array([1, 7, 8, 9, 2])])
def test_the_shape_of_a_batch(source: Any) -> None:
    batch = collate([Encoded(np.array([1, 7, 2]), np.array([7, 2, 0]), source)] * 4)
    assert shape_of(batch) == (4, 3, 0 if source is None else 5)
