"""Beam search against the enumeration of all sequences, Hugging Face's ``generate`` and models without a cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
)

from cases import values_by_day
from parts import POSITIONS
from small_models import pad, random_model
from triptych.models.generation import BeamSearch, Hypothesis, NextToken, Sampling, beam_search, generate

EarlyStopping = bool | Literal["never"]

rules = st.sampled_from([False, True, "never"])
penalties = st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0])


class Whole(NextToken):
    """A next-token function without a cache: it keeps the sequences and gives them to the model as a whole.

    Args:
        logits: (context, sequences) to the logits of the next token, (batch, vocab).
        context: what else the model reads, a row for each sequence.
    """

    def __init__(self, logits: Callable[..., Tensor], *context: Tensor) -> None:
        self.logits, self.context = logits, context
        self.sequences: Tensor | None = None
        self.batch_sizes: list[int] = []
        self.selected: list[list[int]] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        assert torch.is_inference_mode_enabled()
        self.sequences = tokens if self.sequences is None else torch.cat([self.sequences, tokens], dim=1)
        self.batch_sizes.append(len(tokens))
        return self.logits(*self.context, self.sequences)

    def select(self, rows: Tensor) -> None:
        assert self.sequences is not None
        assert rows.tolist() != list(range(len(self.sequences))), "selects what is there anyway"
        self.sequences = self.sequences[rows]
        self.context = tuple(tensor[rows] for tensor in self.context)
        self.selected.append(rows.tolist())


def assert_same(
    found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]], *, tolerance: float = 1e-9
) -> None:
    """The same sequences in the same order, the same scores."""
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
    for row, expected_row in zip(found, expected, strict=True):
        assert [h.score for h in row] == pytest.approx([h.score for h in expected_row], rel=tolerance)


class Table:
    """Random logits for every prefix of every row; a row's prompt is its number."""

    def __init__(self, *, rows: int, vocab: int, limit: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.levels = [
            2 * torch.randn(rows, vocab**length, vocab, generator=generator, dtype=torch.float64)
            for length in range(limit)
        ]

    def __call__(self, sequences: Tensor) -> Tensor:
        """Logits of the next token."""
        prefix = torch.zeros_like(sequences[:, 0])
        for column in sequences[:, 1:].T:
            prefix = prefix * self.vocab + column
        return self.levels[sequences.shape[1] - 1][sequences[:, 0], prefix]

    def sequences(self, row: int, *, end: int, limit: int, length_penalty: float) -> list[Hypothesis]:
        """All that may be written, best first: plain Python, sequence by sequence."""
        found: list[Hypothesis] = []

        def extend(tokens: list[int], log_p: float) -> None:
            logits = self(torch.tensor([[row, *tokens]]))[0].tolist()
            total = sum(map(math.exp, logits))
            for token, logit in enumerate(logits):
                value, length = log_p + math.log(math.exp(logit) / total), len(tokens) + 1
                if token == end:
                    found.append(Hypothesis(tokens, value / length**length_penalty))
                elif length == limit:
                    found.append(Hypothesis([*tokens, token], value / length**length_penalty))
                else:
                    extend([*tokens, token], value)

        extend([], 0.0)
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


class TestEnumeration:
    """With as many beams as there are sequences, nothing is missed."""

    @settings(max_examples=60)
    @given(
        vocab=st.integers(2, 5),
        limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        length_penalty=penalties,
        early_stopping=rules,
        spare=st.integers(0, 3),
        seed=st.integers(0, 1000),
        data=st.data(),
    )
    def test_full_width_finds_the_best_of_all_sequences(
        self,
        vocab: int,
        limits: list[int],
        length_penalty: float,
        early_stopping: EarlyStopping,
        spare: int,
        seed: int,
        data: st.DataObject,
    ) -> None:
        end = data.draw(st.integers(-1, vocab - 1))  # -1: nothing ends a sequence but the limit
        table = Table(rows=len(limits), vocab=vocab, limit=max(limits), seed=seed)
        expected = [
            table.sequences(row, end=end, limit=limit, length_penalty=length_penalty)
            for row, limit in enumerate(limits)
        ]
        num_beams = max(map(len, expected)) + spare
        wanted = data.draw(st.integers(1, num_beams))
        search = BeamSearch(num_beams, length_penalty, early_stopping, wanted)
        prompt = torch.arange(len(limits))[:, None]
        found = beam_search(Whole(table), prompt, end=end, max_new_tokens=limits, search=search)
        assert_same(found, [row[:wanted] for row in expected])

    def test_greedy_search_misses_some(self) -> None:
        """Else the width would not matter above."""
        missed = 0
        for seed in range(20):
            table = Table(rows=1, vocab=4, limit=4, seed=seed)
            (found,) = beam_search(Whole(table), torch.tensor([[0]]), end=0, max_new_tokens=4, search=BeamSearch())
            missed += found[0].tokens != table.sequences(0, end=0, limit=4, length_penalty=1.0)[0].tokens
        assert 0 < missed < 20


class InFloat64(LogitsProcessor):
    """Puts log p of the model's own precision in the place of Hugging Face's float32.

    Args:
        logits: of the next token, as for ``Whole``.
        context: as for ``Whole``, a row for each beam.
    """

    def __init__(self, logits: Callable[..., Tensor], *context: Tensor) -> None:
        self.logits, self.context = logits, context

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        log_p = self.logits(*self.context, input_ids).log_softmax(-1)
        assert log_p.dtype == torch.float64
        torch.testing.assert_close(log_p.float(), scores)
        return log_p


def hugging_face(
    model: Any, whole: Whole, prompt: Tensor, *, end: int, limit: int, search: BeamSearch
) -> list[list[Hypothesis]]:
    """The hypotheses of ``model.generate``, cut into rows and at their end tokens; ``whole`` is the same model."""
    inputs, mask = whole.context or (prompt, torch.ones_like(prompt, dtype=torch.bool))
    spread = (tensor.repeat_interleave(search.num_beams, dim=0) for tensor in whole.context)
    output = model.generate(
        input_ids=inputs, attention_mask=mask.long(), num_beams=search.num_beams,
        length_penalty=search.length_penalty, early_stopping=search.early_stopping,
        num_return_sequences=search.num_return_sequences, max_new_tokens=limit, do_sample=False, eos_token_id=end,
        pad_token_id=end, logits_processor=LogitsProcessorList([InFloat64(whole.logits, *spread)]),
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    tokens = [row[: row.index(end)] if end in row else row for row in output.sequences[:, prompt.shape[1] :].tolist()]
    found = [Hypothesis(*pair) for pair in zip(tokens, output.sequences_scores.tolist(), strict=True)]
    return [found[i : i + search.num_return_sequences] for i in range(0, len(found), search.num_return_sequences)]


def gpt2(*, rows: int, vocab: int, end: int) -> tuple[Any, Whole, Tensor]:
    """A random decoder of transformers, the same as a next-token function, and prompts."""
    size = {"vocab_size": vocab, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model: Any = GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.5, bos_token_id=0, eos_token_id=end))
    model.double().eval()
    return model, Whole(lambda sequences: model(sequences).logits[:, -1]), torch.randint(vocab, (rows, 3))


def bart(*, rows: int, vocab: int, end: int) -> tuple[Any, Whole, Tensor]:
    """The same of an encoder-decoder, which reads sources of different lengths."""
    sides = ("encoder", "decoder")
    size = {"vocab_size": vocab, "max_position_embeddings": 16, "d_model": 16, "init_std": 0.5}
    size |= {f"{side}_{name}": n for side in sides for name, n in (("layers", 1), ("ffn_dim", 24))}
    size |= {f"{side}_attention_heads": 2 for side in sides}
    model: Any = BartForConditionalGeneration(
        BartConfig(**size, decoder_start_token_id=1, eos_token_id=end, forced_eos_token_id=None)
    )
    model.double().eval()

    def logits(source: Tensor, mask: Tensor, sequences: Tensor) -> Tensor:
        return model(source, attention_mask=mask, decoder_input_ids=sequences).logits[:, -1]

    source, mask = torch.randint(vocab, (rows, 5)), torch.arange(5) < torch.randint(1, 6, (rows, 1))
    return model, Whole(logits, source, mask), torch.ones(rows, 1, dtype=torch.long)


@pytest.mark.parametrize(
    ("architecture", "early_stopping", "length_penalty"),
    values_by_day([gpt2, bart], [False, True, "never"], [-1.0, 0.0, 0.6, 1.0, 2.0]),
)
def test_equals_hugging_face(
    architecture: Callable[..., Any], early_stopping: EarlyStopping, length_penalty: float
) -> None:
    """The same hypotheses and scores as transformers, whose models serve as the next-token functions."""
    vocab, end, limit = 8, 3, 9
    lengths, batch_sizes = set(), set()
    for num_beams in (2, 3, 4, 5):
        model, whole, prompt = architecture(rows=8, vocab=vocab, end=end)
        search = BeamSearch(num_beams, length_penalty, early_stopping, num_return_sequences=num_beams)
        expected = hugging_face(model, whole, prompt, end=end, limit=limit, search=search)
        found = beam_search(whole, prompt, end=end, max_new_tokens=limit, search=search)
        assert_same(found, expected)
        lengths |= {len(hypothesis.tokens) for row in found for hypothesis in row}
        batch_sizes |= set(whole.batch_sizes)
    assert len(lengths) > 2
    assert len(batch_sizes) > (4 if length_penalty < 2 else 3)


def alone(
    whole: Callable[[int], Whole], prompts: list[Tensor], *, limits: list[int], search: BeamSearch, end: int
) -> list[list[Hypothesis]]:
    """What is found for each sentence by itself, without a cache."""
    return [
        beam_search(whole(i), prompt, end=end, max_new_tokens=limit, search=search)[0]
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


VOCAB = 11
sentences = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=2, max_size=5)
ends = st.integers(0, VOCAB - 1)


@st.composite
def beam_searches(draw: st.DrawFn) -> BeamSearch:
    """Of any kind."""
    num_beams = draw(st.integers(1, 5))
    return BeamSearch(num_beams, draw(penalties), draw(rules), draw(st.integers(1, num_beams)))


@pytest.mark.parametrize("position", POSITIONS)
class TestModels:
    """Sentences of different lengths and limits in one batch, with a cache: each gets what it gets alone, without.

    Not to 1e-9, since the angles of rotary positions are float32 in any model.
    """

    @given(sentences=sentences, end=ends, search=beam_searches())
    def test_decoder(self, position: str, sentences: list[tuple[int, int]], end: int, search: BeamSearch) -> None:
        decoder = random_model("decoder_only", position=position)
        rows, limits = [torch.randint(VOCAB, (1, length)) for length, _ in sentences], [n for _, n in sentences]

        def whole(row: int) -> Whole:
            return Whole(lambda tokens: decoder(tokens)[:, -1])

        prompts, mask = pad(rows, left=True)
        continuation = decoder.continuation(mask, capacity=prompts.shape[1] + max(limits) - 1)
        found = beam_search(continuation, prompts, end=end, max_new_tokens=limits, search=search)
        assert_same(found, alone(whole, rows, limits=limits, search=search, end=end), tolerance=1e-6)

    @given(sentences=sentences, end=ends, search=beam_searches())
    def test_full_model(self, position: str, sentences: list[tuple[int, int]], end: int, search: BeamSearch) -> None:
        full, start = random_model("full", position=position), torch.tensor([[1]])
        rows, limits = [torch.randint(VOCAB, (1, length)) for length, _ in sentences], [n for _, n in sentences]

        def whole(row: int) -> Whole:
            return Whole(lambda source, tokens: full(source, tokens)[:, -1], rows[row])

        source, mask = pad(rows)
        continuation = full.continuation(source, mask, capacity=max(limits))
        starts = start.expand(len(rows), 1)
        found = beam_search(continuation, starts, end=end, max_new_tokens=limits, search=search)
        assert_same(found, alone(whole, [start] * len(rows), limits=limits, search=search, end=end), tolerance=1e-6)


class TestOneBeam:
    @settings(max_examples=30)
    @given(sentences=sentences, end=ends, length_penalty=penalties, early_stopping=rules)
    def test_is_greedy_search(
        self, sentences: list[tuple[int, int]], end: int, length_penalty: float, early_stopping: EarlyStopping
    ) -> None:
        decoder = random_model("decoder_only")
        rows, limits = [torch.randint(VOCAB, (1, length)) for length, _ in sentences], [n for _, n in sentences]
        prompts, mask = pad(rows, left=True)

        def continuation() -> Any:
            return decoder.continuation(mask, capacity=16)

        greedy = generate(continuation(), prompts, end=end, max_new_tokens=limits, sampling=Sampling())
        search = BeamSearch(1, length_penalty, early_stopping)
        found = beam_search(continuation(), prompts, end=end, max_new_tokens=limits, search=search)
        assert [[hypothesis.tokens for hypothesis in row] for row in found] == [[tokens] for tokens in greedy]
        for row, limit, tokens, (hypothesis,) in zip(rows, limits, greedy, found, strict=True):
            written = torch.tensor([tokens if len(tokens) == limit else [*tokens, end]])
            log_p = decoder(torch.cat([row, written], dim=1)).log_softmax(-1)[:, row.shape[1] - 1 : -1]
            total = log_p.gather(2, written[:, :, None]).sum().item()
            assert hypothesis.score == pytest.approx(total / written.shape[1] ** length_penalty, rel=1e-9)


class TestStopping:
    """Two hypotheses are there, of which the worse has the score -2; the beams have 2 of at most 8 tokens."""

    @pytest.mark.parametrize(
        ("early_stopping", "length_penalty", "bound"),  # the sum of log p that the best beam must exceed
        [
            (True, 1.0, math.inf),
            (False, 0.0, -2.0),
            (False, 1.0, -2.0 * 2),
            (False, -1.0, -2.0 / 2),
            ("never", 0.0, -2.0),
            ("never", 1.0, -2.0 * 8),  # eight tokens would be divided by 8
            ("never", 2.0, -2.0 * 64),
            ("never", -1.0, -2.0 / 2),  # more tokens would only make it worse
        ],
    )
    def test_best_beam_must_be_able_to_win(
        self, early_stopping: EarlyStopping, length_penalty: float, bound: float
    ) -> None:
        search = BeamSearch(2, length_penalty, early_stopping)
        found = [Hypothesis([3], -0.5), Hypothesis([4], -2.0)]
        for log_p in (bound - 0.01, bound, bound + 0.01, -0.01):
            should_continue = search.should_continue(found, log_p=min(log_p, 0.0), length=2, limit=8)
            assert should_continue == (log_p > bound)

    @given(search=beam_searches(), log_p=st.floats(-9, 0))
    def test_limit_ends_it_and_too_few_hypotheses_do_not(self, search: BeamSearch, log_p: float) -> None:
        found = [Hypothesis([3], -0.5)] * search.num_beams
        assert not search.should_continue(found, log_p=log_p, length=8, limit=8)
        assert not search.should_continue(found[1:], log_p=log_p, length=8, limit=8)
        assert search.should_continue(found[1:], log_p=log_p, length=2, limit=8)


class TestCalls:
    """What the next-token function is asked to do. (``Whole`` refuses selections that change nothing.)"""

    def test_prompt_once_then_beams_and_finished_rows_leave(self) -> None:
        script = torch.tensor([-50.0, 0.0, -0.1, -50.0]).repeat(3, 4, 1)  # of each row and step: 1 or 2
        for row, length in enumerate((2, 1, 3)):
            script[row, length] = torch.tensor([0.0, -50.0, -50.0, -50.0])  # then all beams end

        whole = Whole(lambda rows, sequences: script[rows, sequences.shape[1] - 2], torch.arange(3))
        prompt = torch.tensor([[3, 3]] * 3)
        found = beam_search(whole, prompt, end=0, max_new_tokens=9, search=BeamSearch(2, early_stopping=True))
        assert [len(row[0].tokens) for row in found] == [2, 1, 3]
        assert whole.batch_sizes == [3, 6, 4, 2]
        assert whole.selected[0] == [0, 0, 1, 1, 2, 2]

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_at_most_one_for_each_token(self, limit: int) -> None:
        whole = Whole(Table(rows=2, vocab=4, limit=limit, seed=0))
        beam_search(whole, torch.tensor([[0], [1]]), end=-1, max_new_tokens=limit, search=BeamSearch(3))
        assert len(whole.batch_sizes) == limit

    def test_one_beam_selects_only_when_rows_leave(self) -> None:
        whole = Whole(Table(rows=2, vocab=4, limit=5, seed=0))
        beam_search(whole, torch.tensor([[0], [1]]), end=-1, max_new_tokens=[5, 3], search=BeamSearch())
        assert whole.batch_sizes == [2, 2, 2, 1, 1]
        assert whole.selected == [[0]]


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(1, 7).bfloat16()
    whole = Whole(lambda sequences: logits.expand(len(sequences), -1))
    search = BeamSearch(3, length_penalty=0.0)
    ((found,),) = beam_search(whole, torch.tensor([[1]]), end=-1, max_new_tokens=50, search=search)
    assert found.score == pytest.approx(50 * float(logits.double().log_softmax(-1).max()), rel=1e-6)


class TestBadValues:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_beams": 0}, "num_beams=0: expected at least 1"),
            ({"num_return_sequences": 0}, "num_return_sequences=0: expected 1 to num_beams=1"),
            ({"num_beams": 3, "num_return_sequences": 4}, "num_return_sequences=4: expected 1 to num_beams=3"),
        ],
    )
    def test_of_the_search_raise(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            BeamSearch(**options)

    def test_of_early_stopping_raise(self) -> None:
        search = BeamSearch()
        object.__setattr__(search, "early_stopping", "always")  # the tests' check of types refuses it before
        with pytest.raises(ValueError, match="early_stopping=always: expected true, false or never"):
            search.__post_init__()

    @pytest.mark.parametrize("max_new_tokens", [0, [3, 0]])
    def test_of_the_limits_raise(self, max_new_tokens: int | list[int]) -> None:
        whole = Whole(Table(rows=2, vocab=4, limit=3, seed=0))
        with pytest.raises(ValueError, match=r"max_new_tokens=.*0.*: expected at least 1"):
            beam_search(whole, torch.tensor([[0], [1]]), end=0, max_new_tokens=max_new_tokens, search=BeamSearch())
