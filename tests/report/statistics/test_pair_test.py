"""The test of two variants: against scipy, and against enumeration."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from triptych.report.statistics.pair_test import PairTest, Sample, Scale, barnard


def sample(*values: float, name: str = "a", grain: float = 0.0) -> Sample:
    return Sample(name, values, tuple(range(len(values))), grain)


def pair(
    first: Sample, second: Sample, *, margin: float | None = None, higher: bool = True,
    floor: float | None = 0.0, ceiling: float | None = 1.0,
) -> PairTest:  # fmt: skip
    scale = Scale.of([first, second], higher_is_better=higher, floor=floor, ceiling=ceiling)
    return PairTest.of(first, second, scale, margin)


@pytest.mark.parametrize(
    ("first", "second", "p"), [(2, 2, 0.125), (2, 3, 0.0625), (3, 3, 1 / 32), (4, 4, 1 / 128), (5, 5, 1 / 512)]
)
def test_all_against_none(first: int, second: int, p: float) -> None:
    """Where any order of the tables gives the same p, as scipy's does."""
    if first == second:
        assert barnard(first, 0, first, second) == pytest.approx(p)
        expected = stats.barnard_exact([[first, 0], [0, second]], n=128).pvalue
        assert barnard(first, 0, first, second) == pytest.approx(expected, abs=1e-4)
    assert barnard(first, 0, first, second) <= p * (1 + 1e-12)
    assert barnard(0, second, first, second) == barnard(first, 0, first, second)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_barnard_is_the_worst_probability_of_as_large_a_difference(m: int, n: int, data: st.DataObject) -> None:
    """Enumerated in fractions at 21 probabilities, which cannot be above the maximum and come near it."""

    def distance(a: int, b: int) -> Fraction:
        share = Fraction(a + b, m + n)
        return (Fraction(a, m) - Fraction(b, n)) ** 2 / (share * (1 - share)) if 0 < share < 1 else Fraction(0)

    k, j = data.draw(st.integers(0, m)), data.draw(st.integers(0, n))
    worst = Fraction(0)
    for q in (Fraction(i, 20) for i in range(21)):
        tables = [
            math.comb(m, a) * math.comb(n, b) * q ** (a + b) * (1 - q) ** (m + n - a - b)
            for a, b in product(range(m + 1), range(n + 1))
            if distance(a, b) >= distance(k, j)
        ]
        worst = max(worst, sum(tables, Fraction(0)))
    found = barnard(k, j, m, n)
    assert float(worst) - 1e-12 <= found <= min(float(worst) * 1.1 + 0.01, 1.0)


@pytest.mark.parametrize("table", [(4, 2, 4, 4), (8, 3, 8, 8), (10, 5, 10, 10), (3, 1, 3, 5), (5, 2, 6, 9)])
def test_barnard_is_scipys(table: tuple[int, int, int, int]) -> None:
    first, second, m, n = table
    expected = stats.barnard_exact([[first, second], [m - first, n - second]], n=128).pvalue
    assert barnard(first, second, m, n) == pytest.approx(expected, abs=1e-4)


def test_a_run_failed_that_went_less_than_a_tenth_of_the_way() -> None:
    """From the floor to the median run of the better variant, in either direction."""
    first, second = sample(0.9, 0.5, 0.1), sample(0.14, 0.12, math.nan)
    scale = Scale.of([first, second], higher_is_better=True, floor=0.1, ceiling=None)
    assert scale.threshold == pytest.approx(0.1 + 0.1 * (0.5 - 0.1))
    assert (scale.learned(first), scale.learned(second)) == ([0.9, 0.5], [0.14])
    losses = [sample(*(1 - x for x in of_one.values)) for of_one in (first, second)]
    scale = Scale.of(losses, higher_is_better=False, floor=0.9, ceiling=None)
    assert [len(scale.learned(of_one)) for of_one in losses] == [2, 1]


def test_without_a_floor_only_runs_that_are_not_finite_failed() -> None:
    scale = Scale.of([sample(0.0, math.inf), sample(1.0, 2.0)], higher_is_better=True, floor=None, ceiling=None)
    assert scale.learned(sample(-9.0, math.inf, math.nan)) == [-9.0]


def test_a_collapse_does_not_hide_a_better_mean() -> None:
    """Welch's t on all five runs of each would see nothing."""
    better, worse = (0.80, 0.81, 0.79, 0.80, 0.02), (0.70, 0.71, 0.69, 0.70, 0.01)
    assert stats.ttest_ind(better, worse, equal_var=False).pvalue > 0.5
    found = pair(sample(*better), sample(*worse))
    assert (found.learned, found.winner) == ((4, 4), 1)
    assert found.p == pytest.approx(stats.ttest_ind(better[:4], worse[:4], equal_var=False).pvalue, rel=1e-3)


def test_the_shares_decide_only_if_the_means_do_not_say_the_opposite() -> None:
    learned, failed = (0.50, 0.51, 0.49, 0.50, 0.50, 0.51, 0.49, 0.50), (0.01,) * 5
    mixed = sample(0.90, 0.91, 0.92, *failed)
    found = pair(sample(*learned), mixed)
    assert found.p_learned < 0.05
    assert found.welch is not None
    assert found.welch.p < 0.05
    assert (found.lead, found.winner, found.doubt) == (0, 0, "the better mean has more failed runs")
    alike = sample(0.50, 0.49, 0.51, *failed)
    assert pair(sample(*learned), alike).winner == 1


def test_fewer_than_three_seeds_and_seeds_that_occur_twice() -> None:
    two = sample(0.9, 0.91, name="two")
    assert pair(two, sample(0.1, 0.11, 0.12)).reasons == ("two has 2 seeds, expected at least 3",)
    again = Sample("again", (0.9, 0.91, 0.92), (1, 1, 2))
    assert pair(again, sample(0.1, 0.11, 0.12)).reasons == ("again has several runs of seed 1",)
    assert pair(again, sample(0.1, 0.11, 0.12)).winner == 0


@pytest.mark.parametrize(("center", "reason"), [(0.08, "floor"), (0.5, None), (0.95, "ceiling")])
def test_equivalence_needs_room(center: float, reason: str | None) -> None:
    values = [center - 0.001, center, center + 0.001]
    found = pair(sample(*values), sample(*values), margin=0.05)
    assert found.p < 0.05
    expected = () if reason is None else (f"both variants are within two margins of the {reason}",)
    assert (found.reasons, found.more_seeds_help) == (expected, reason is None)


def test_equivalence_is_not_judged_if_runs_failed() -> None:
    values = (0.5, 0.501, 0.499)
    found = pair(sample(*values, 0.0), sample(*values, 0.5), margin=0.05)
    assert found.reasons == ("1 of 8 runs failed",)


def test_nothing_is_claimed_of_variants_at_the_floor() -> None:
    guessing, also = sample(0.001, 0.0, 0.0005), sample(0.0, 0.0, 0.0)
    assert pair(guessing, also, margin=None).reasons == ("no variant is better than guessing",)
    assert pair(sample(0.2, 0.2, 0.2), also).reasons == ()


@given(st.lists(st.floats(0.3, 0.7), min_size=3, max_size=6), st.lists(st.floats(0.3, 0.7), min_size=3, max_size=6))
def test_order_and_sides_do_not_matter(first: list[float], second: list[float]) -> None:
    one, other = pair(sample(*first), sample(*second)), pair(sample(*second), sample(*first))
    assert (one.p, one.winner) == (pytest.approx(other.p), -other.winner)
    shuffled = [*np.random.default_rng(0).permutation(first)]
    assert pair(sample(*shuffled), sample(*second)).p == pytest.approx(one.p)
