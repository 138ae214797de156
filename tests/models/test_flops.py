"""Parameters and operations against formulas written out by hand."""

from functools import cache, partial
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from cases import by_day, values_by_day
from parts import make_stack
from small_models import build
from triptych.data import EncodedExample, collate
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly
from triptych.models.flops import (
    TrainingCost,
    count_parameters,
    decoding_flops,
    forward_flops,
    inputs_of,
    parameters_by_part,
)
from triptych.nn import (
    Embedding,
    FrameEmbedding,
    Head,
    LinformerAttention,
    LongformerAttention,
    PatchEmbedding,
    PerformerAttention,
    ReformerAttention,
    RelativeBias,
)
from triptych.training.callbacks.cost_tracker import shape_of

D, FF, LAYERS, VOCAB, LENGTH = 16, 24, 2, 11, 24  # of the models that ``build`` builds

ARCHITECTURES = ["encoder_only", "decoder_only", "full"]
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
NETWORKS: list[dict[str, Any]] = [
    {"position": partial(RelativeBias, num_buckets=4), "gated": True},
    {"position": "rotary", "num_kv_heads": 2, "bias": False},
    {"position": "learned", "sliding_windows": [3, None]},
    {"position": "sinusoidal", "pool": "last", "head_options": {"transform": "tanh"}},
    {"position": "none", "sliding_windows": [3, None, 40], "num_layers": 4, "num_kv_heads": 2},
    {"position": "relative_bias", "sliding_windows": [3]},
    {"position": "rotary", "qk_norm": "head", "num_kv_heads": 1},
    {"position": "none", "sliding_windows": [3], "softcap": 2.0},
    {"position": "alibi", "sliding_windows": [3]},
    {"position": "none", "residual": "parallel", "num_kv_heads": 1},
    {"position": "none", "attends": PerformerAttention, "num_features": 8},
    {"position": "none", "attends": ReformerAttention, "num_buckets": 4, "bucket_window": 5},
    {"position": "none", "attends": LongformerAttention, "sliding_windows": [3, 9], "num_global_tokens": 4},
]


class TestParameters:
    @every_architecture
    @pytest.mark.parametrize("tie_word_embeddings", [False, True])
    @pytest.mark.parametrize("position", ["learned", "sinusoidal"])
    def test_count(self, architecture: str, tie_word_embeddings: bool, position: str) -> None:
        attention = 4 * (D * D + D)
        norm = 2 * D
        layer = attention + (2 * D * FF + FF + D) + 2 * norm
        stacks = LAYERS * layer + norm
        if architecture == "full":
            stacks = 2 * stacks + LAYERS * (attention + norm)
        tables = (2 if architecture == "full" else 1) * LENGTH * D if position == "learned" else 0
        embedding = VOCAB * D + tables
        head = 0 if tie_word_embeddings else D * VOCAB
        model = build(architecture, tie_word_embeddings=tie_word_embeddings, position=position)
        assert count_parameters(model) == (embedding + stacks + head, stacks + head)

    def test_two_tables(self) -> None:
        one = build("full", tie_word_embeddings=True)
        parts = {name: getattr(one, name) for name in ("embedding", "encoder", "decoder", "head")}
        two = EncoderDecoder(**parts, tie_word_embeddings=True, source_embedding=Embedding(vocab_size=VOCAB, d_model=D))
        everything, rest = count_parameters(one)
        assert count_parameters(two) == (everything + VOCAB * D, rest)
        assert parameters_by_part(two)["embedding"] == 2 * VOCAB * D
        assert sum(parameters_by_part(two).values()) == everything + VOCAB * D

    def test_frozen_parameters_do_not_count(self) -> None:
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


def total(network: Any, shapes: dict[tuple[int, ...], int], *, unanswered: int = 0) -> int:
    return sum(TrainingCost(network).by_part(shapes, unanswered=unanswered).values())


def on_meta(architecture: str, **options: Any) -> Any:
    with torch.device("meta"):
        return build(architecture, **options)


@cache
def cost_of(architecture: str, pool: str = "none") -> TrainingCost:
    """The same for all examples of a property: what it has counted once it knows."""
    return TrainingCost(on_meta(architecture, pool=pool))


class TestOperations:
    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
    def test_of_images(self, architecture: str) -> None:
        """Patches of 2x3 pixels in two channels, 8 of them and [cls]; the pixels themselves need no gradient."""
        with torch.device("meta"):
            embedding = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=D)
            causal, sizes = architecture == "decoder_only", {"d_model": D, "num_heads": 4, "d_ff": FF}
            stack = make_stack(num_layers=LAYERS, causal=causal, max_length=9, **sizes)
            parts: dict[str, Any] = {"embedding": embedding, "head": Head(d_model=D, num_outputs=VOCAB, pooling="last")}
            network = DecoderOnly(**parts, decoder=stack) if causal else EncoderOnly(**parts, encoder=stack)
        body = multiply_adds("encoder_only", 9, 0, outputs=1)
        assert total(network, {(5, 2, 4, 12): 3}) == 3 * 5 * (6 * body + 4 * 8 * 12 * D)

    @every_architecture
    @pytest.mark.parametrize("pool", ["none", "last"])
    @given(rows=st.integers(1, 4), length=st.integers(2, 9), source=st.integers(2, 9))
    def test_of_a_batch(self, architecture: str, pool: str, rows: int, length: int, source: int) -> None:
        """Two a multiply-add; the backward pass, to inputs and to weights, costs twice the forward pass."""
        source = source if architecture == "full" else 0
        forward = 2 * rows * multiply_adds(architecture, length, source, outputs=length if pool == "none" else 1)
        cost = cost_of(architecture, pool)
        assert sum(cost.by_part({(rows, length, source): 1}).values()) == 3 * forward

    @every_architecture
    def test_of_places_that_the_head_leaves_out(self, architecture: str) -> None:
        model, source = on_meta(architecture), 4 if architecture == "full" else 0
        forward = 2 * 3 * multiply_adds(architecture, 5, source, outputs=5) - 2 * 7 * D * VOCAB
        assert total(model, {(3, 5, source): 1}, unanswered=7) == 3 * forward

    def test_batches_add_up(self) -> None:
        model = on_meta("full")
        shapes = [(2, 3, 4), (1, 9, 2)]
        first, second = (total(model, {shape: 1}) for shape in shapes)
        assert total(model, dict(zip(shapes, (10, 3), strict=True))) == 10 * first + 3 * second
        assert TrainingCost(model).by_part({}) == {}

    @every_architecture
    @given(rows=st.integers(1, 4), length=st.integers(2, 9), source=st.integers(2, 9))
    def test_of_each_part(self, architecture: str, rows: int, length: int, source: int) -> None:
        source, width = source if architecture == "full" else 0, 2 * D * FF
        expected = {
            "encoder": LAYERS * (products(source, source) + source * width),
            "decoder": LAYERS * (products(length, length) + length * width),
            "cross_attention": LAYERS * products(length, source) if source else 0,
            "head": length * D * VOCAB,
        }
        if architecture == "encoder_only":
            expected |= {"encoder": expected["decoder"], "decoder": 0}
        found = cost_of(architecture).by_part({(rows, length, source): 1})
        assert found == {part: 6 * rows * number for part, number in expected.items() if number}

    @pytest.mark.parametrize(
        ("options", "architecture"),
        by_day(product(NETWORKS, ARCHITECTURES), [*zip(NETWORKS[::2], cycle(ARCHITECTURES), strict=False)]),
        ids=str,
    )
    def test_a_few_counts_tell_the_others(self, architecture: str, options: dict[str, Any]) -> None:
        model = on_meta(architecture, **options)
        cost = TrainingCost(model)
        long = [(2, 200, 128), (1, 127, 300)] if options["position"] in ("none", "relative_bias") else []
        for shape in [(5, 24, 17), (2, 1, 24), (1, 2, 1), (3, 20, 2), *long]:
            shape = shape if architecture == "full" else (*shape[:2], 0)
            counted = forward_flops(model, shape)
            assert cost.by_part({shape: 2}) == {part: 6 * flops for part, flops in counted.items()}

    @pytest.mark.parametrize(("architecture", "causal"), [("decoder_only", 1), ("encoder_only", 0)])
    @given(length=st.integers(1, 400), window=st.integers(1, 70))
    def test_of_windows(self, architecture: str, causal: int, length: int, window: int) -> None:
        """Of a long text, blocks of b = max(w, 32) queries and b + w keys, b + 2 w without causality; else all pairs.
        In the first of the two layers."""
        block = max(window, 32)
        seen = -(-length // block) * block * (block + (2 - causal) * window) if length >= 4 * block else length**2
        forward = multiply_adds(architecture, length, 0, outputs=length) + 2 * (seen - length**2) * D
        model = on_meta(architecture, sliding_windows=[window, None], max_length=400)
        assert total(model, {(2, length, 0): 1}) == 3 * 2 * 2 * forward

    def test_of_shortened_keys(self) -> None:
        model = on_meta("encoder_only", attends=LinformerAttention, projected_length=4, max_length=200)
        shape = (2, 130, 0)
        assert TrainingCost(model).by_part({shape: 1}) == {p: 3 * n for p, n in forward_flops(model, shape).items()}

    @every_architecture
    def test_no_longer_text_is_counted_than_there_was(self, architecture: str) -> None:
        """A table of two positions has no third."""
        model = on_meta(architecture, max_length=2, position="learned")
        assert total(model, {(4, 2, 2 if architecture == "full" else 0): 1}) > 0

    @pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "full", "images"])
    def test_of_torchs_counter(self, architecture: str) -> None:
        """Forward and backward, counted as they run."""
        if architecture == "images":
            with torch.device("meta"):
                embedding = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=D)
                stack = make_stack(num_layers=LAYERS, causal=False, max_length=9, d_model=D, num_heads=4, d_ff=FF)
                head = Head(d_model=D, num_outputs=VOCAB, pooling="first")
                model: Any = EncoderOnly(embedding=embedding, encoder=stack, head=head)
            shape: tuple[int, ...] = (5, 2, 4, 12)
        else:
            model, shape = on_meta(architecture), (3, 7, 4 if architecture == "full" else 0)
        with FlopCounterMode(display=False) as counter:
            model(**inputs_of(model, shape, torch.device("meta"))).sum().backward()
        assert total(model, {shape: 1}) == counter.get_total_flops()

    @pytest.mark.parametrize(
        ("architecture", "stem"),
        values_by_day(["encoder_only", "decoder_only", "prefix_lm", "full"], ["stacked", "convolutional"]),
    )
    def test_of_sounds_by_torchs_counter(self, architecture: str, stem: Any) -> None:
        """Forward and backward, and of one more token, counted as they run."""
        text = on_meta(architecture)
        with torch.device("meta"):
            frames = FrameEmbedding(rate=8000, num_mels=3, d_model=D, stem=stem, stride=3)
        if architecture == "encoder_only":
            model: Any = EncoderOnly(embedding=frames, encoder=text.encoder, head=text.head)
            shapes = [(2, 7, 0), (1, 20, 0)]
        else:
            stacks = {name: getattr(text, name) for name in ("encoder", "decoder") if hasattr(text, name)}
            model = type(text)(embedding=text.embedding, source_embedding=frames, head=text.head, **stacks)
            shapes = [(2, 5, 7), (1, 2, 20)]
        for shape in shapes:
            with FlopCounterMode(display=False) as counter:
                model(**inputs_of(model, shape, torch.device("meta"))).sum().backward()
            assert total(model, {shape: 1}) == counter.get_total_flops()
        if architecture == "decoder_only":
            layer = 4 * D * D + 2 * (5 + 9) * D + 2 * D * FF
            assert decoding_flops(model, 5, 9) == 2 * (LAYERS * layer + D * VOCAB)

    @pytest.mark.parametrize("architecture", ["decoder_only", "full"])
    @given(length=st.integers(1, 9), source=st.integers(1, 9))
    def test_of_one_more_token(self, architecture: str, length: int, source: int) -> None:
        """What is kept is not computed again: k and v of the new token alone, and none of the source."""
        layer = 4 * D * D + 2 * length * D + 2 * D * FF
        if architecture == "full":
            layer += 2 * D * D + 2 * source * D
            layer += 2 * source * D * D if length == 1 else 0  # the first token computes them
        model = cost_of(architecture).network
        assert decoding_flops(model, length, source) == 2 * (LAYERS * layer + D * VOCAB)

    @pytest.mark.parametrize("architecture", ["decoder_only", "prefix_lm", "full"])
    def test_of_images_before_texts_by_torchs_counter(self, architecture: str) -> None:
        """Forward and backward, and of one more token, counted as they run."""
        text = on_meta(architecture, position="rotary")
        with torch.device("meta"):
            patches = PatchEmbedding(image_size=[4, 12], patch_size=[2, 3], num_channels=2, d_model=D)
        stacks = {name: getattr(text, name) for name in ("encoder", "decoder") if hasattr(text, name)}
        model: Any = type(text)(embedding=text.embedding, source_embedding=patches, head=text.head, **stacks)
        for shape in [(2, 5, 9), (1, 2, 9)]:
            with FlopCounterMode(display=False) as counter:
                model(**inputs_of(model, shape, torch.device("meta"))).sum().backward()
            assert total(model, {shape: 1}) == counter.get_total_flops()
        if architecture == "decoder_only":
            layer = 4 * D * D + 2 * (5 + 9) * D + 2 * D * FF
            assert decoding_flops(model, 5, 9) == 2 * (LAYERS * layer + D * VOCAB)
        words, image = np.array([1, 7, 2]), np.zeros((2, 4, 12), dtype=np.float32)
        batch = collate([EncodedExample(words, words, image)] * 5)
        assert shape_of(batch, model) == (5, 3, 9)
        assert (batch.num_nonpadding, batch.num_with_padding, batch.source_mask) == (20, 20, None)


def test_the_shape_of_a_batch_of_images() -> None:
    batch = collate([EncodedExample(np.zeros((2, 4, 12), dtype=np.float32), np.array([1]))] * 3)
    assert shape_of(batch, build("encoder_only")) == (3, 2, 4, 12)
    assert (batch.num_nonpadding, batch.num_with_padding, batch.mask) == (3, 3, None)


@pytest.mark.parametrize("source", [None, np.array([1, 7, 8, 9, 2])])
def test_the_shape_of_a_batch(source: Any) -> None:
    batch = collate([EncodedExample(np.array([1, 7, 2]), np.array([7, 2, 0]), source)] * 4)
    assert shape_of(batch, build("full")) == (4, 3, 0 if source is None else 5)


def test_the_shape_of_a_batch_of_sounds() -> None:
    """In vectors, of which the last may have fewer frames."""
    text = build("decoder_only", d_model=D)
    frames = FrameEmbedding(rate=8000, num_mels=3, d_model=D, stride=2)
    sound, words = np.zeros((7, 3), dtype=np.float32), np.array([1, 7, 2])
    network = DecoderOnly(embedding=text.embedding, source_embedding=frames, decoder=text.decoder, head=text.head)
    assert shape_of(collate([EncodedExample(words, words, sound)] * 5), network) == (5, 3, 4)
    network = DecoderOnly(embedding=frames, decoder=text.decoder, head=text.head)
    assert shape_of(collate([EncodedExample(sound, np.array([1]))] * 5), network) == (5, 4, 0)
