"""Welch, equivalence and Holm, against scipy and against what they are defined by."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from triptych.report.statistics.significance import Welch, adjust_by_holm, seeds_to_decide

seeds = st.lists(st.floats(0, 1).map(lambda x: round(x, 6)), min_size=2, max_size=8)
CLEAR, TIE = ([0.9, 0.91, 0.92], [0.5, 0.52, 0.51]), ([0.5, 0.6, 0.7], [0.52, 0.61, 0.66])


@given(seeds, seeds)
def test_p_is_scipys_with_fewer_degrees_of_freedom(first: list[float], second: list[float]) -> None:
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    found = stats.ttest_ind(first, second, equal_var=False)
    freedom = min(found.df, 2 * min(len(first), len(second)) - 2)
    expected = 2 * stats.t.sf(abs(found.statistic), freedom)
    assert Welch.of(first, second).p == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert expected >= found.pvalue * (1 - 1e-9)


def test_degrees_of_freedom_are_capped() -> None:
    """Three and five seeds: the interval just excludes 0 by Welch's 5.02 degrees, and contains it by 4."""
    first, second = [0.600, 0.602, 0.604], [0.592, 0.604, 0.586, 0.596, 0.590]
    found, ours = stats.ttest_ind(first, second, equal_var=False), Welch.of(first, second)
    assert (found.df, found.pvalue) == pytest.approx((5.017, 0.04995), rel=1e-3)
    assert (ours.freedom, ours.p) == (4, pytest.approx(0.0621, abs=5e-5))
    assert ours.interval == pytest.approx((-0.00068, 0.01748), abs=5e-6)
    clear = Welch.of([0.98, 0.982, 0.979], [0.95, 0.948, 0.953, 0.951, 0.949])
    assert (clear.freedom, *clear.interval) == pytest.approx((4, 0.02671, 0.03355), abs=5e-6)


@pytest.mark.parametrize("values", [CLEAR, TIE])
@pytest.mark.parametrize("margin", [0.01, 0.05, 0.5])
def test_equivalence_is_two_one_sided_tests(values: tuple[list[float], list[float]], margin: float) -> None:
    first, second = values
    higher, lower = [x - margin for x in first], [x + margin for x in first]
    within = [
        stats.ttest_ind(higher, second, equal_var=False, alternative="less").pvalue,
        stats.ttest_ind(lower, second, equal_var=False, alternative="greater").pvalue,
    ]
    beyond = [
        stats.ttest_ind(higher, second, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(lower, second, equal_var=False, alternative="less").pvalue,
    ]
    assert Welch.of(first, second).p_within(margin) == pytest.approx(max(within))
    assert Welch.of(first, second).p_beyond(margin) == pytest.approx(min(beyond))


def test_without_any_spread_there_is_no_test() -> None:
    apart = Welch.of([1.0, 1.0], [0.0, 0.0])
    assert all(map(math.isnan, apart.interval))
    assert (apart.p, 2 * apart.p_within(0.5), 2 * apart.p_beyond(0.5)) == (1.0, 1.0, 1.0)


def test_rounding_adds_to_the_variance() -> None:
    """Of numbers that were rounded to whole grains, the error is that of the numbers before, and not 0."""
    random = np.random.default_rng(0)
    exact = random.normal(0, 0.4, (2, 4000))
    rounded = np.round(exact)
    found = Welch.of([*rounded[0]], [*rounded[1]], 0.0, 0.0)
    assert found.error == pytest.approx(math.sqrt(sum(rounded.var(1, ddof=1)) / 4000))
    few = Welch.of([250.0] * 3, [500.0] * 3, 50.0, 50.0)
    assert few.error == pytest.approx(math.sqrt(2 * 50**2 / 12 / 3))
    assert few.p == pytest.approx(stats.ttest_ind_from_stats(250, 50 / 12**0.5, 3, 500, 50 / 12**0.5, 3, False).pvalue)


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_the_closure_of_bonferronis_tests(p_values: list[float]) -> None:
    """A hypothesis is rejected where each set of hypotheses that holds it is, by the least of its p-values times its
    size (Marcus, Peritz and Gabriel 1976): enumerated, for all sets."""
    numbers = range(len(p_values))
    sets = [some for size in range(1, len(p_values) + 1) for some in combinations(numbers, size)]
    expected = [
        max(min(1.0, len(some) * min(p_values[i] for i in some)) for some in sets if k in some) for k in numbers
    ]
    assert adjust_by_holm(p_values) == pytest.approx(expected)


def test_so_many_seeds_show_the_difference() -> None:
    """Four times in five, and three quarters of them do not."""
    random = np.random.default_rng(0)
    for distance in (0.5, 1.0, 2.0):
        count = seeds_to_decide(distance, 1.0)
        assert count is not None
        for number, is_enough in ((count, True), (3 * count // 4, False)):
            first, second = (random.normal(mean, 1, (20_000, number)) for mean in (distance, 0.0))
            power = (stats.ttest_ind(first, second, axis=1).pvalue < 0.05).mean()
            assert (power > 0.78) == is_enough, (distance, number, power)
    assert seeds_to_decide(0.01, 1.0) is None
    assert seeds_to_decide(0.0, 1.0) is None
