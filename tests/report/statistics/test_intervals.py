"""Profiles, against Student's t of linear models and numpy's percentiles."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from triptych.report.statistics.intervals import Profile


def linear(centre: float, error: float, freedom: int) -> Profile:
    """The profile of a parameter of a linear model: its root is a straight line."""
    values = centre + error * np.linspace(-40, 40, 161)
    return Profile(values, (values - centre) / error, freedom)


@settings(max_examples=10)
@given(st.floats(-3, 3), st.floats(0.01, 2), st.integers(1, 30), st.floats(0.1, 2), st.integers(1, 30))
def test_linear_models_have_intervals_and_p_values_of_student(
    centre: float, error: float, freedom: int, other_error: float, other_freedom: int
) -> None:
    first, second = linear(centre, error, freedom), linear(1.0, other_error, other_freedom)
    np.testing.assert_allclose(first.interval, stats.t.interval(0.95, freedom, centre, error), rtol=1e-6, atol=1e-9)
    low, high, p = first.subtract(second)
    fewer, both = min(freedom, other_freedom), math.hypot(error, other_error)
    expected = stats.t.interval(0.95, fewer, centre - 1, both)
    np.testing.assert_allclose([low, high], expected, atol=1e-3 * (expected[1] - expected[0]))
    assert p == pytest.approx(2 * stats.t.sf(abs(centre - 1) / both, fewer), abs=2e-3)


def test_what_the_values_do_not_bound_is_infinite() -> None:
    values = np.linspace(-1, 1, 21)
    flat = Profile(values, np.where(values > 0, values, 20 * values), 8)  # its root is 1 at most
    low, high = flat.interval
    assert (low, high) == (pytest.approx(-stats.t.ppf(0.975, 8) / 20), math.inf)
    assert flat.subtract(linear(0.0, 0.1, 8))[1] == math.inf
    assert linear(0.0, 0.1, 8).subtract(flat)[0] == -math.inf
    assert -math.inf < flat.subtract(linear(0.0, 0.1, 8))[0] < 0


def test_draws_have_percentile_intervals() -> None:
    draws = np.random.default_rng(0).lognormal(size=2000)
    np.testing.assert_allclose(Profile.of_draws(draws, 9).interval, np.percentile(draws, [2.5, 97.5]), rtol=1e-2)
