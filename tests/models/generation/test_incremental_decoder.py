"""Decoding against a loop over the whole model, one sequence at a time, without a cache."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from small_models import pad, random_model
from triptych.models.generation import LogitsProcessors, NextToken, Prompts, Sampling, generate
from triptych.nn import LongformerAttention, PerformerAttention, ReformerAttention

VOCAB, END = 11, 0
GREEDY = Sampling()

every_position = pytest.mark.parametrize("position", ["none", "learned", "sinusoidal", "rotary", "relative_bias"])


def step_by_step(logits: Callable[[Tensor], Tensor], prompt: Tensor, *, num_tokens: int) -> list[int]:
    """Argmax of the logits of the last position, again and again."""
    tokens = prompt
    for _ in range(num_tokens):
        tokens = torch.cat([tokens, logits(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens[0, prompt.shape[1] :].tolist()


class Script(NextToken):
    """A next-token function that writes given sequences, whatever it is given, and remembers what it was given."""

    def __init__(self, *sequences: list[int]) -> None:
        self.sequences = torch.tensor(sequences)
        self.rows = list(range(len(sequences)))
        self.given: list[list[list[int]]] = []
        self.kept: list[list[int]] = []

    def __call__(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.rows)
        assert torch.is_inference_mode_enabled()
        self.given.append(tokens.tolist())
        return torch.nn.functional.one_hot(self.sequences[self.rows, len(self.given) - 1], VOCAB).float()

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]
        self.kept.append(self.rows)


class TestLoop:
    def test_rows_finish_at_their_own_times_and_leave(self) -> None:
        script = Script([3, 4, END, 9], [END, 9, 9, 9], [5, 6, 7, END], [8, END, 9, 9])
        prompt = torch.tensor([[1, 2], [2, 2], [3, 2], [4, 2]])
        found = generate(script, prompt, end=END, max_new_tokens=9, sampling=GREEDY)
        assert found == [[3, 4], [], [5, 6, 7], [8]]
        assert script.given == [prompt.tolist(), [[3], [8], [5]], [[4], [6]], [[7]]]
        assert script.kept == [[0, 3, 2], [0, 2], [2]]  # the last takes the place of one that leaves

    @pytest.mark.parametrize("max_new_tokens", [0, 1, 2, 3])
    def test_stops_after_max_new_tokens(self, max_new_tokens: int) -> None:
        script = Script([3, 4, 5], [6, 7, 8])
        prompt = torch.tensor([[1], [1]])
        found = generate(script, prompt, end=END, max_new_tokens=max_new_tokens, sampling=GREEDY)
        assert found == [[3, 4, 5][:max_new_tokens], [6, 7, 8][:max_new_tokens]]
        assert len(script.given) == max_new_tokens

    def test_an_end_token_in_the_prompt_ends_nothing(self) -> None:
        found = generate(Script([3, END]), torch.tensor([[END, 1]]), end=END, max_new_tokens=2, sampling=GREEDY)
        assert found == [[3]]


def end_and_rows(runs: list[list[int]]) -> tuple[int, list[list[int]]]:
    """The token that, taken as the end token, gives the runs the most different lengths; and the runs up to it."""

    def up_to(end: int) -> list[list[int]]:
        return [list(itertools.takewhile(lambda token: token != end, run)) for run in runs]

    end = max(range(VOCAB), key=lambda end: len(set(map(len, up_to(end)))))
    assume(len(set(map(len, up_to(end)))) > 1)
    return end, up_to(end)


prompt_lengths = st.lists(st.integers(1, 5), min_size=4, max_size=6)


@every_position
class TestGreedy:
    """Rows finish at different times, and each gets what it gets alone."""

    @settings(max_examples=5)
    @given(lengths=prompt_lengths)
    def test_of_a_decoder(self, position: str, lengths: list[int]) -> None:
        decoder = random_model("decoder_only", position=position)
        rows = [torch.randint(VOCAB, (1, length)) for length in lengths]
        end, expected = end_and_rows([step_by_step(decoder, row, num_tokens=6) for row in rows])
        prompts, mask = pad(rows, left=True)
        continuation = decoder.continuation(mask, capacity=prompts.shape[1] + 5)
        assert generate(continuation, prompts, end=end, max_new_tokens=6, sampling=GREEDY) == expected

    @settings(max_examples=5)
    @given(lengths=prompt_lengths)
    def test_of_the_full_model(self, position: str, lengths: list[int]) -> None:
        full, start = random_model("full", position=position), torch.tensor([[1]])
        rows = [torch.randint(VOCAB, (1, length)) for length in lengths]
        runs = [step_by_step(lambda tokens, row=row: full(row, tokens), start, num_tokens=6) for row in rows]
        end, expected = end_and_rows(runs)
        source, mask = pad(rows)
        starts = start.expand(len(rows), 1)
        continuation = full.continuation(source, mask, capacity=6)
        assert generate(continuation, starts, end=end, max_new_tokens=6, sampling=GREEDY) == expected


WAYS: dict[str, dict[str, Any]] = {
    **{
        position: {"position": position}
        for position in ("none", "learned", "sinusoidal", "rotary", "relative_bias", "alibi")
    },
    "windows": {"position": "rotary", "sliding_windows": [3, None]},
    "shared keys": {"num_kv_heads": 2},
    "longformer": {
        "position": "rotary", "attends": LongformerAttention, "sliding_windows": [3, 2], "num_global_tokens": 2,
    },
    "performer": {"position": "rotary", "attends": PerformerAttention, "num_features": 12},
    "reformer": {
        "position": "rotary", "attends": ReformerAttention, "num_buckets": 4, "num_hashes": 2, "bucket_window": 3,
    },
}  # fmt: skip


class Queue:
    """Prompts that wait, each with a limit, and how many were taken at a time."""

    def __init__(self, rows: list[Tensor], limits: list[int], start: Callable[..., Prompts]) -> None:
        self.rows, self.limits, self.start, self.taken = rows, limits, start, list[int]()

    def __call__(self, count: int) -> Prompts | None:
        some, limits = self.rows[:count], self.limits[:count]
        self.rows, self.limits = self.rows[count:], self.limits[count:]
        self.taken += [len(some)] if some else []
        return self.start(some, limits) if some else None

    def generate(self, size: int, **options: Any) -> list[list[int]]:
        """Those that wait, so many at a time."""
        first = self(size)
        assert first is not None
        given = {"max_new_tokens": first.limits, "prompt_mask": first.mask, "more": self, **options}
        return generate(first.next_token, first.tokens, sampling=GREEDY, **given)


texts = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=5, max_size=8)


@pytest.mark.parametrize("way", WAYS)
class TestOthersTakeThePlaces:
    """Of rows that have ended; each gets what it gets alone."""

    @settings(max_examples=3)
    @given(texts=texts, size=st.integers(1, 4))
    def test_in_a_decoder(self, way: str, texts: list[tuple[int, int]], size: int) -> None:
        decoder = random_model("decoder_only", **WAYS[way])
        rows, limits = [torch.randint(VOCAB, (1, length)) for length, _ in texts], [limit for _, limit in texts]
        expected = [step_by_step(decoder, row, num_tokens=n) for row, n in zip(rows, limits, strict=True)]

        def start(some: list[Tensor], limits: list[int]) -> Prompts:
            prompts, mask = pad(some, left=True)
            return Prompts(decoder.continuation(mask, capacity=prompts.shape[1] + max(limits)), prompts, mask, limits)

        queue = Queue(rows, limits, start)
        assert queue.generate(size, end=-1) == expected
        assert sum(queue.taken) == len(rows)
        assert all(size - count <= size // 2 for count in queue.taken[:-1])

    @settings(max_examples=3)
    @given(texts=texts, size=st.integers(1, 4))
    def test_in_the_full_model(self, way: str, texts: list[tuple[int, int]], size: int) -> None:
        full, begin = random_model("full", **WAYS[way]), torch.tensor([[1]])
        rows, limits = [torch.randint(VOCAB, (1, length)) for length, _ in texts], [limit for _, limit in texts]
        expected = [
            step_by_step(lambda tokens, row=row: full(row, tokens), begin, num_tokens=n)
            for row, n in zip(rows, limits, strict=True)
        ]

        def start(some: list[Tensor], limits: list[int]) -> Prompts:
            next_token = full.continuation(*pad(some), capacity=max(limits) + 1)
            return Prompts(next_token, begin.expand(len(some), 1), None, limits)

        assert Queue(rows, limits, start).generate(size, end=-1) == expected


def test_others_wait_for_all_where_there_are_rules() -> None:
    """For the rules count the tokens of all rows at once."""
    decoder, rules = random_model("decoder_only"), LogitsProcessors(min_new_tokens=2, repetition_penalty=1.5)
    rows = [torch.randint(1, VOCAB, (1, 3 + i % 2)) for i in range(9)]

    def start(some: list[Tensor], limits: list[int]) -> Prompts:
        prompts, mask = pad(some, left=True)
        return Prompts(decoder.continuation(mask, capacity=12), prompts, mask, limits)

    alone = [Queue([row], [7], start).generate(1, end=3, logits_processors=rules)[0] for row in rows]
    queue = Queue(rows, [7] * 9, start)
    assert queue.generate(4, end=3, logits_processors=rules) == alone
    assert queue.taken == [4, 4, 1]
    assert len(set(map(len, alone))) > 1
