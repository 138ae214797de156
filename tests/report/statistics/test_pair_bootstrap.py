"""The bootstrap over paradigms, pairs and seeds, against one that draws each index in a loop."""

from collections.abc import Sequence

import numpy as np
import pytest

from triptych.report.pair_scores import PairScores
from triptych.report.statistics.pair_bootstrap import compare_pair_scores

PARADIGMS = [f"p{i}" for i in range(8)]
SIZE = 20


def arm(random: np.random.Generator, shift: float) -> PairScores:
    """Nats so that the accuracy of a paradigm is about 50 + 100 * its shift."""
    names = [name for name in PARADIGMS for _ in range(SIZE)]
    shares = np.repeat(0.5 + shift + random.uniform(-0.2, 0.2, len(PARADIGMS)), SIZE)
    good = (random.random(len(names)) > shares) * 2.0
    ones = np.ones((2, len(names)), int)
    return PairScores(names, names, np.zeros(len(names), bool), np.array([good, np.ones(len(names))]), ones)


def loop(first: Sequence[PairScores], second: Sequence[PairScores], draws: int) -> list[float]:
    random, found = np.random.default_rng(5), []
    for _ in range(draws):
        ours = [first[i] for i in random.integers(len(first), size=len(first))]
        theirs = [second[i] for i in random.integers(len(second), size=len(second))]
        means = []
        for paradigm in random.integers(len(PARADIGMS), size=len(PARADIGMS)):
            pairs = paradigm * SIZE + random.integers(SIZE, size=SIZE)
            sides = [np.mean([scores.points[pairs].mean() for scores in side]) for side in (ours, theirs)]
            means.append(sides[0] - sides[1])
        found.append(100 * float(np.mean(means)))
    return found


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (3, 2)])
def test_it_is_a_loop_over_draws(ours: int, theirs: int) -> None:
    random = np.random.default_rng(1)
    first, second = [arm(random, 0.2) for _ in range(ours)], [arm(random, 0) for _ in range(theirs)]
    found, drawn = compare_pair_scores(first, second, PARADIGMS), loop(first, second, 1500)
    assert found is not None
    points = [np.mean([scores.points.mean() for scores in side]) for side in (first, second)]
    assert found.difference == pytest.approx(100 * (points[0] - points[1]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.15 * (high - low))


def test_the_same_network_twice() -> None:
    scores = arm(np.random.default_rng(2), 0.1)
    found = compare_pair_scores([scores], [scores], PARADIGMS)
    assert found is not None
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_pairs_that_one_leaves_out_do_not_count() -> None:
    one, other = arm(np.random.default_rng(3), 0.1), arm(np.random.default_rng(4), 0)
    nats = one.nats.copy()
    nats[:, ::2] = np.nan
    less = PairScores(one.paradigm, one.phenomenon, one.is_permutation, nats, one.tokens)
    found = compare_pair_scores([less], [other], PARADIGMS)
    assert found is not None
    assert found.difference == pytest.approx(100 * (one.points[1::2].mean() - other.points[1::2].mean()))


def test_other_pairs() -> None:
    one = arm(np.random.default_rng(3), 0.1)
    names = one.paradigm[:-1]
    fewer = PairScores(names, names, one.is_permutation[:-1], one.nats[:, 1:], one.tokens[:, 1:])
    assert compare_pair_scores([one], [fewer], PARADIGMS) is None
    assert compare_pair_scores([one], [one], []) is None
