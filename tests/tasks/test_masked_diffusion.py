"""The bound of masked diffusion by enumeration, and filling in against the distribution it must sample from."""

import math
from collections import Counter
from functools import cache
from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from triptych.data import IGNORE_INDEX, Batch, EncodedExample, collate
from triptych.tasks.masked_diffusion import Proposal, draw, fill_in, hide

MASK, PROMPT = 9, 7
P, START = np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0.8, 0.2])


def probability(text: tuple[int, ...]) -> float:
    """Of a chain of 0 and 1."""
    return float(START[text[0]] * math.prod(P[before, after] for before, after in pairwise(text)))


@cache
def conditional(seen: tuple[int, ...], place: int) -> float:
    """p(1 at a place | the places that are not masked), by enumeration."""
    every = product((0, 1), repeat=len(seen))
    fits = [text for text in every if all(s in (t, MASK) for s, t in zip(seen, text, strict=True))]
    return math.fsum(probability(x) for x in fits if x[place]) / math.fsum(map(probability, fits))


def batch_of(texts: list[tuple[int, ...]], prompts: list[int]) -> Batch:
    """Texts after prompts of some length, which are no targets."""
    return collate(
        [
            EncodedExample(np.array([PROMPT] * n + [*text]), np.array([IGNORE_INDEX] * n + [*text]))
            for text, n in zip(texts, prompts, strict=True)
        ]
    )


def nats(batch: Batch, hidden: Batch, weights: Tensor) -> Tensor:
    """The weighted losses of a network that knows the conditionals."""
    losses = torch.zeros(weights.shape, dtype=torch.float64)
    for row, (seen, labels) in enumerate(zip(hidden.inputs.tolist(), batch.labels.tolist(), strict=True)):
        places = [i for i, label in enumerate(labels) if label != IGNORE_INDEX]
        text = tuple(seen[i] for i in places)
        for at, i in enumerate(places):
            if seen[i] == MASK:
                p = conditional(text, at)
                losses[row, i] = -math.log(p if labels[i] else 1 - p)
    return losses * weights


@pytest.mark.parametrize("prompts", [[0, 0], [2, 1]])
def test_the_bound_is_exact_if_the_conditionals_are(prompts: list[int]) -> None:
    """The mean over all k and all orders of the places, in rows with 4 and 3 places. Masks fall on targets only."""
    texts = [(0, 1, 1, 0), (1, 0, 0)]
    batch = batch_of(texts, prompts)
    totals = []
    for k, order in product(range(12), permutations(range(4))):  # 12 is a multiple of 3 and 4
        orders = torch.zeros(batch.labels.shape)
        for row, n in enumerate(prompts):
            orders[row, n : n + len(texts[row])] = torch.tensor(order[: len(texts[row])]) / 4
        hidden, weights = hide(batch, MASK, torch.full((2,), (k + 0.5) / 12, dtype=torch.float64), orders)
        assert (hidden.inputs[batch.labels == IGNORE_INDEX] == batch.inputs[batch.labels == IGNORE_INDEX]).all()
        totals.append(nats(batch, hidden, weights).sum(1))
    expected = torch.tensor([-math.log(probability(text)) for text in texts], dtype=torch.float64)
    torch.testing.assert_close(torch.stack(totals).mean(0), expected, rtol=0, atol=1e-10)


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 2**31 - 1))
def test_what_is_hidden(counts: list[int], seed: int) -> None:
    """In each row k places, each with weight N / k; k is the share of N, rounded up."""
    torch.manual_seed(seed)
    batch = batch_of([(1,) * n for n in counts], [2] * len(counts))
    shares = torch.rand(len(counts))
    hidden, weights = hide(batch, MASK, shares, torch.rand(batch.labels.shape))
    is_hidden = hidden.inputs == MASK
    expected = [math.floor(float(share) * n) + 1 for share, n in zip(shares, counts, strict=True)]
    assert is_hidden.sum(1).tolist() == expected
    torch.testing.assert_close(weights, is_hidden * (torch.tensor(counts) / torch.tensor(expected))[:, None])


def test_texts_in_a_packed_row_are_hidden_separately() -> None:
    """As in rows, with the same draws."""
    torch.manual_seed(2)
    items = [EncodedExample(np.array([PROMPT, *text]), np.array([IGNORE_INDEX, *text])) for text in ([0, 1], [1] * 5)]
    shares, orders = torch.rand(2), torch.rand(2, 6)
    _, padded = hide(collate(items), MASK, shares, orders)
    packed_orders = torch.cat([orders[0, :3], orders[1]])[None]
    hidden, packed = hide(collate(items, packed=True), MASK, shares, packed_orders)
    torch.testing.assert_close(packed[0], torch.cat([padded[0, :3], padded[1]]))
    assert ((hidden.inputs == MASK) == (packed > 0)).all()


def test_shares_are_uniform_and_spread_evenly() -> None:
    torch.manual_seed(1)
    batch = batch_of([(0, 1)] * 4, [0] * 4)
    drawn = torch.stack([draw(batch)[0] for _ in range(2000)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn[:, 2].numpy(), "uniform").pvalue > 1e-4
    torch.testing.assert_close(drawn.sort(1).values.diff(dim=1), torch.full((2000, 3), 0.25), rtol=0, atol=1e-6)


@given(
    counts=st.lists(st.integers(0, 8), min_size=1, max_size=5), steps=st.integers(1, 10), seed=st.integers(0, 2**31 - 1)
)
def test_filling_in(counts: list[int], steps: int, seed: int) -> None:
    """Every hidden place is filled in once, in the order of the ranks, and nothing else changes."""
    torch.manual_seed(seed)
    tokens = torch.full((len(counts), 10), PROMPT)
    for row, n in enumerate(counts):
        tokens[row, torch.randperm(10)[:n]] = MASK
    is_hidden, ranks, seen = tokens == MASK, torch.rand(tokens.shape), list[Tensor]()

    def propose(tokens: Tensor) -> Proposal:
        seen.append(tokens)
        return torch.full(tokens.shape, len(seen)), ranks

    filled = fill_in(tokens, is_hidden, propose, steps)
    assert len(seen) == steps
    assert (filled[~is_hidden] == PROMPT).all()
    for row, n in enumerate(counts):
        at = filled[row][is_hidden[row]]
        sizes = [n * (s + 1) // steps - n * s // steps for s in range(steps)]
        assert Counter(at.tolist()) == Counter({s: size for s, size in enumerate(sizes, 1) if size})
        assert (at[ranks[row][is_hidden[row]].argsort()].diff() >= 0).all()


def test_one_place_per_step_samples_from_the_distribution() -> None:
    """In an order that is not left to right: the same as ancestral sampling, if the conditionals are those of one
    distribution (chi-squared over all texts)."""
    generator, count = torch.Generator().manual_seed(3), 20_000
    ranks = torch.tensor([[2.0, 0.0, 1.0]]).expand(count, 3)

    def propose(tokens: Tensor) -> Proposal:
        kinds, rows = torch.unique(tokens, dim=0, return_inverse=True)
        p = torch.tensor([[conditional(tuple(seen), i) for i in range(3)] for seen in kinds.tolist()])
        return (torch.rand(tokens.shape, generator=generator) < p[rows]).long(), ranks

    filled = fill_in(torch.full((count, 3), MASK), torch.ones(count, 3, dtype=torch.bool), propose, 3)
    found = Counter(map(tuple, filled.tolist()))
    texts = [*product((0, 1), repeat=3)]
    expected = [count * probability(text) for text in texts]
    assert stats.chisquare([found[text] for text in texts], expected).pvalue > 1e-3
