"""What must hold for every model, whatever its blocks: who sees whom, padding, cached decoding."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from cases import pairs_by_day
from parts import POSITIONS, QK_NORMS, RESIDUALS
from small_models import pad, random_model
from triptych.nn.feed_forward import ACTIVATIONS

VOCAB = 11
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}

every_position = pytest.mark.parametrize("position", POSITIONS)
few_examples = settings(max_examples=5)  # for each kind of position
blocks = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["layer_norm", "rms_norm"]),
        "residual": st.sampled_from([*RESIDUALS]),
        "activation": st.sampled_from([*ACTIVATIONS]),
        "gated": st.booleans(),
        "bias": st.booleans(),
        "num_kv_heads": st.sampled_from([None, 2, 1]),
        "head_dim": st.sampled_from([None, 8]),
        "qk_norm": st.sampled_from(QK_NORMS),
        "softcap": st.sampled_from([None, 2.0]),
        "tie_word_embeddings": st.booleans(),
    }
)


def sequences(*lengths: int) -> list[Tensor]:
    """Random sequences, each a batch of one."""
    return [torch.randint(VOCAB, (1, length)) for length in lengths]


def other_token(tokens: Tensor, place: int) -> Tensor:
    """The same tokens but for one place."""
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % VOCAB
    return changed


@every_position
class TestWhoSeesWhom:
    @few_examples
    @given(block=blocks, place=st.integers(0, 6))
    def test_a_decoder_never_sees_the_future(self, position: str, block: dict[str, Any], place: int) -> None:
        tokens, source = torch.randint(VOCAB, (2, 7)), torch.randint(VOCAB, (2, 4))
        decoder, full = (random_model(name, position=position, **block) for name in ("decoder_only", "full"))
        for logits in (decoder, lambda tokens: full(source, tokens)):
            before, after = logits(tokens), logits(other_token(tokens, place))
            assert_close(after[:, :place], before[:, :place], **TOLERANCE)
            assert (before != after)[:, place:].any(-1).all()  # and does see the past

    @few_examples
    @given(block=blocks, place=st.integers(0, 6))
    def test_an_encoder_sees_both_sides(self, position: str, block: dict[str, Any], place: int) -> None:
        tokens, target = torch.randint(VOCAB, (2, 7)), torch.randint(VOCAB, (2, 4))
        encoder, full = (random_model(name, position=position, **block) for name in ("encoder_only", "full"))
        for logits in (encoder, lambda source: full(source, target)):
            assert (logits(tokens) != logits(other_token(tokens, place))).any(-1).all()

    def test_the_order_of_what_is_seen_matters_where_there_are_positions(self, position: str) -> None:
        # one layer: with a second, even a causal model without positions knows the order from who saw whom
        encoder, decoder = (
            random_model(name, position=position, num_layers=1) for name in ("encoder_only", "decoder_only")
        )
        tokens = torch.arange(7)[None]
        earlier_swapped, later_swapped = tokens[:, [1, 0, 2, 3, 4, 5, 6]], tokens[:, [0, 1, 2, 3, 4, 6, 5]]
        for model, swapped, place in (
            (encoder, earlier_swapped, 6),
            (encoder, later_swapped, 0),
            (decoder, earlier_swapped, 6),
        ):
            same = torch.allclose(model(swapped)[:, place], model(tokens)[:, place], **TOLERANCE)
            assert same == (position == "none")


@every_position
class TestPadding:
    @few_examples
    @given(block=blocks)
    def test_on_the_right_changes_nothing(self, position: str, block: dict[str, Any]) -> None:
        rows, sources = sequences(7, 3, 1), sequences(2, 6, 4)
        (tokens, mask), (source, source_mask) = pad(rows), pad(sources)
        encoder = random_model("encoder_only", position=position, **block)
        decoder = random_model("decoder_only", position=position, **block)
        full = random_model("full", position=position, **block)
        for i, row in enumerate(rows):
            alone = decoder(row)
            for batch in (decoder(tokens, mask), decoder(tokens)):  # causal: needs no mask
                assert_close(batch[i, mask[i]], alone[0], **TOLERANCE)
            assert_close(encoder(tokens, mask)[i, mask[i]], encoder(row)[0], **TOLERANCE)
            alone = full(sources[i], row)
            for batch in (full(source, tokens, source_mask, mask), full(source, tokens, source_mask)):
                assert_close(batch[i, mask[i]], alone[0], **TOLERANCE)

    @few_examples
    @given(block=blocks)
    def test_on_the_left_changes_nothing_for_a_decoder(self, position: str, block: dict[str, Any]) -> None:
        rows = sequences(7, 3, 1)
        tokens, mask = pad(rows, left=True)
        decoder = random_model("decoder_only", position=position, **block)
        for i, row in enumerate(rows):
            assert_close(decoder(tokens, mask)[i, mask[i]], decoder(row)[0], **TOLERANCE)

    @pytest.mark.parametrize("pool", ["first", "last", "mean"])
    def test_changes_no_pooled_logits(self, position: str, pool: str) -> None:
        rows, sources = sequences(7, 3, 1), sequences(2, 6, 4)
        (tokens, mask), (source, source_mask) = pad(rows), pad(sources)
        options = {"position": position, "pool": pool, "num_outputs": 3}
        encoder, decoder, full = (random_model(a, **options) for a in ("encoder_only", "decoder_only", "full"))
        left_tokens, left_mask = pad(rows, left=True)
        for i, row in enumerate(rows):
            assert_close(encoder(tokens, mask)[i], encoder(row)[0], **TOLERANCE)
            assert_close(decoder(tokens, mask)[i], decoder(row)[0], **TOLERANCE)
            assert_close(decoder(left_tokens, left_mask)[i], decoder(row)[0], **TOLERANCE)
            assert_close(full(source, tokens, source_mask, mask)[i], full(sources[i], row)[0], **TOLERANCE)


@pytest.mark.parametrize(
    ("position", "pool", "architecture"),
    pairs_by_day([*POSITIONS], ["none", "first", "last", "mean"], ["encoder_only", "decoder_only", "full"]),
)
@few_examples
@given(block=blocks.map(lambda block: block | {"tie_word_embeddings": False}))
def test_a_row_of_padding_only_stays_finite(architecture: str, position: str, pool: str, block: dict[str, Any]) -> None:
    model = random_model(architecture, position=position, pool=pool, **block)
    tokens, mask = torch.randint(VOCAB, (3, 5)), torch.tensor([[True] * 5, [False] * 5, [False] * 3 + [True] * 2])
    logits = model(tokens, tokens, mask, mask) if architecture == "full" else model(tokens, mask)
    loss = cross_entropy(logits.flatten(0, -2), torch.zeros(logits.shape[:-1], dtype=torch.long).flatten())
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


chunks = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@every_position
class TestContinuation:
    @few_examples
    @given(block=blocks, chunks=chunks)
    @torch.no_grad()
    def test_of_a_decoder_equals_the_logits_of_the_whole(
        self, position: str, block: dict[str, Any], chunks: list[int]
    ) -> None:
        decoder, tokens = random_model("decoder_only", position=position, **block), torch.randint(VOCAB, (3, 16))
        expected = decoder(tokens)
        continuation = decoder.continuation(None, capacity=sum(chunks))
        for start, end in itertools.pairwise([0, *itertools.accumulate(chunks)]):
            assert_close(continuation(tokens[:, start:end]), expected[:, end - 1], **TOLERANCE)

    @few_examples
    @given(block=blocks, chunks=chunks)
    @torch.no_grad()
    def test_of_prompts_padded_on_the_left(self, position: str, block: dict[str, Any], chunks: list[int]) -> None:
        decoder, prompts = random_model("decoder_only", position=position, **block), sequences(5, 2, 1)
        tokens, mask = pad(prompts, left=True)
        continuation = decoder.continuation(mask, capacity=5 + sum(chunks))
        for row, logits in zip(prompts, continuation(tokens), strict=True):
            assert_close(logits, decoder(row)[0, -1], **TOLERANCE)
        new = torch.randint(VOCAB, (3, 16))
        for start, end in itertools.pairwise([0, *itertools.accumulate(chunks)]):
            found = continuation(new[:, start:end])
            for i, row in enumerate(prompts):
                alone = torch.cat([row, new[i : i + 1, :end]], dim=1)
                assert_close(found[i], decoder(alone)[0, -1], **TOLERANCE)

    @few_examples
    @given(block=blocks, chunks=chunks)
    @torch.no_grad()
    def test_of_the_full_model_equals_the_logits_of_the_whole(
        self, position: str, block: dict[str, Any], chunks: list[int]
    ) -> None:
        full, tokens = random_model("full", position=position, **block), torch.randint(VOCAB, (3, 16))
        source, source_mask = pad(sequences(6, 1, 4))
        expected = full(source, tokens, source_mask)
        continuation = full.continuation(source, source_mask, capacity=sum(chunks))
        for start, end in itertools.pairwise([0, *itertools.accumulate(chunks)]):
            assert_close(continuation(tokens[:, start:end]), expected[:, end - 1], **TOLERANCE)

    @few_examples
    @given(first=st.lists(st.integers(0, 2), min_size=1, max_size=4), data=st.data())
    @torch.no_grad()
    def test_select_keeps_reorders_and_copies_rows(self, position: str, first: list[int], data: st.DataObject) -> None:
        second = data.draw(st.lists(st.integers(0, len(first) - 1), min_size=1, max_size=4))
        decoder, full = (random_model(name, position=position) for name in ("decoder_only", "full"))
        prompts, sources = sequences(4, 2, 1), sequences(2, 5, 3)
        (tokens, mask), (source, source_mask) = pad(prompts, left=True), pad(sources)
        of_decoder = decoder.continuation(mask, capacity=8)
        of_full = full.continuation(source, source_mask, capacity=8)
        of_decoder(tokens)
        of_full(tokens)
        # what each row of the batch holds: its origin, the decoder's tokens and those of the full model
        held = [(i, prompts[i], tokens[i : i + 1]) for i in range(3)]
        for rows in (first, second):
            of_decoder.select(torch.tensor(rows))
            of_full.select(torch.tensor(rows))
            new = torch.randint(VOCAB, (len(rows), 2))
            held = [
                (held[row][0], *(torch.cat([old, new[i : i + 1]], dim=1) for old in held[row][1:]))
                for i, row in enumerate(rows)
            ]
            decoder_logits, full_logits = of_decoder(new), of_full(new)
            for i, (origin, of_prompt, of_start) in enumerate(held):
                assert_close(decoder_logits[i], decoder(of_prompt)[0, -1], **TOLERANCE)
                assert_close(full_logits[i], full(sources[origin], of_start)[0, -1], **TOLERANCE)

    def test_more_than_its_capacity_raises(self, position: str) -> None:
        continuation = random_model("decoder_only", position=position).continuation(None, capacity=4)
        continuation(torch.zeros(1, 4, dtype=torch.long))
        with pytest.raises(ValueError, match="holds 4 positions, 5 were asked for"):
            continuation(torch.zeros(1, 1, dtype=torch.long))
