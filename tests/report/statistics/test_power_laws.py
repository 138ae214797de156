"""Fits of power laws: against laws that are known, and against scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from triptych.report.statistics.power_laws import PowerLaw, fit_power_law, profile_law
from triptych.report.statistics.scaling import COORDINATES

NAMES = ("parameters", "tokens")


def grid(sizes: int = 4, budgets: int = 4, seeds: int = 1) -> np.ndarray:
    """Sizes times budgets, as a ladder has them."""
    n = 1e4 * 2.0 ** np.arange(sizes)
    c = 1e11 * 2.0 ** np.arange(budgets)
    n, c = (values.ravel() for values in np.meshgrid(n, c))
    return np.repeat(np.stack([n, c / (6 * n)], 1), seeds, 0)


def law(x: np.ndarray, alpha: float, beta: float, floor: float, share: float = 0.5) -> np.ndarray:
    """Its terms are ``share`` and 1 - ``share`` in the middle."""
    n, d = (x / np.exp(np.log(x).mean(0))).T
    return floor + share * n**-alpha + (1 - share) * d**-beta


exponents = st.floats(0.15, 1.2)


@settings(max_examples=10)
@given(exponents, exponents, st.floats(0.2, 3.0), st.floats(0.2, 0.8), st.booleans())
def test_a_law_without_noise_is_found_again(
    alpha: float, beta: float, floor: float, share: float, is_known: bool
) -> None:
    x = grid()
    loss = law(x, alpha, beta, floor, share)
    fit = fit_power_law(NAMES, x, loss, floor if is_known else None)
    np.testing.assert_allclose([*fit.exponents, fit.irreducible], [alpha, beta, floor], rtol=1e-3)
    np.testing.assert_allclose(fit.predict(x), loss, rtol=1e-6)
    assert fit.r_squared == pytest.approx(1)


def sum_of_huber(parameters: np.ndarray, x: np.ndarray, loss: np.ndarray, delta: float) -> float:
    """By scipy's functions, as Hoffmann et al. write it: of a, b, e, alpha and beta."""
    a, b, e, alpha, beta = parameters
    n, d = np.log(x).T
    terms = np.stack([a - alpha * n, b - beta * d, np.full(len(n), e)])
    return float(special.huber(delta, special.logsumexp(terms, axis=0) - np.log(loss)).sum())


@pytest.mark.parametrize("delta", [1e-3, 1e-2, 1e-9])
def test_scipy_finds_nothing_lower(delta: float) -> None:
    x = grid(5, 5)
    loss = law(x, 0.4, 0.3, 1.7) * np.exp(0.01 * np.random.default_rng(0).standard_t(3, len(x)))
    fit = fit_power_law(NAMES, x, loss, None, delta=delta, num_draws=1)
    ours = np.array([*np.log(fit.coefficients), np.log(fit.irreducible), *fit.exponents])
    reached = sum_of_huber(ours, x, loss, delta)
    starts = [ours, np.array([8.0, 8.0, 0.5, 0.4, 0.3]), np.array([4.0, 5.0, 0.1, 0.2, 0.2])]
    for start in starts:
        for method in ("L-BFGS-B", "Nelder-Mead"):
            found = optimize.minimize(sum_of_huber, start, (x, loss, delta), method, options={"maxiter": 2000})
            assert found.fun > reached * (1 - 1e-5)


@settings(max_examples=5)
@given(st.floats(1e-3, 1e3), st.floats(0.1, 10), st.booleans())
def test_units_change_coefficients_alone(unit: float, bits: float, is_known: bool) -> None:
    """Parameters counted in other units change A by unit^alpha; the loss in others, A, B and E in proportion."""
    x = grid(seeds=2)
    loss = law(x, 0.6, 0.4, 1.1) * np.exp(0.005 * np.random.default_rng(1).standard_normal(len(x)))
    floor = 1.1 if is_known else None
    fit = fit_power_law(NAMES, x, loss, floor)
    other = fit_power_law(NAMES, x * [unit, 1], bits * loss, floor and bits * floor)
    np.testing.assert_allclose(other.exponents, fit.exponents, rtol=1e-4)
    factors = np.array([bits * unit ** fit.exponents[0], bits])
    np.testing.assert_allclose(other.coefficients, factors * fit.coefficients, rtol=1e-2)
    np.testing.assert_allclose(other.irreducible, bits * fit.irreducible, rtol=1e-4)
    for exponent in (COORDINATES["parameters"], COORDINATES["flops"]):
        np.testing.assert_allclose(
            profile_law(other, exponent).interval, profile_law(fit, exponent).interval, rtol=1e-3
        )
    assert other.r_squared == pytest.approx(fit.r_squared, abs=1e-6)


def noisy(seed: int, seeds: int = 4) -> PowerLaw:
    """A fit of runs with noise of 1 %."""
    x = grid(seeds=seeds)
    loss = law(x, 0.6, 0.4, 1.1) * np.exp(0.01 * np.random.default_rng(seed).standard_normal(len(x)))
    return fit_power_law(NAMES, x, loss, 1.1, delta=0.1, num_draws=400)


def test_draws_spread_as_the_curvature_says() -> None:
    """Where the noise is normal and small, the bootstrap's covariance is that of scipy's least squares."""
    x, fit = grid(seeds=4), noisy(3)
    loss = fit.predict(x) * np.exp(fit.residuals)

    def logarithm(x: np.ndarray, a: float, b: float, alpha: float, beta: float) -> np.ndarray:
        return np.log(1.1 + np.exp(a - alpha * np.log(x[0])) + np.exp(b - beta * np.log(x[1])))

    start = [*np.log(fit.coefficients), *fit.exponents]
    found, covariance = optimize.curve_fit(logarithm, x.T, np.log(loss), start)
    np.testing.assert_allclose(fit.exponents, found[2:], atol=0.3 * covariance[2, 2] ** 0.5)
    ours, theirs = np.cov(fit.exponent_draws.T), covariance[2:, 2:]
    np.testing.assert_allclose(np.sqrt(np.diag(ours)), np.sqrt(np.diag(theirs)), rtol=0.2)
    assert np.corrcoef(fit.exponent_draws.T)[0, 1] == pytest.approx(
        theirs[0, 1] / np.sqrt(theirs[0, 0] * theirs[1, 1]), abs=0.15
    )


def test_intervals_cover_the_truth() -> None:
    """Less of what benchmarks/scaling_coverage.py does: of 60 intervals of 95 %, 51 to 60 but 1 time in 1,000."""
    x, hits = np.geomspace(1, 64, 7)[:, None].repeat(2, 0), 0
    for seed in range(60):
        noise = np.exp(0.02 * np.random.default_rng(seed).standard_normal(len(x)))
        fit = fit_power_law(("flops",), x, (1 + x[:, 0] ** -0.5) * noise, 1.0)
        low, high = profile_law(fit, COORDINATES["parameters"]).interval
        hits += int(low <= 0.5 <= high)
    assert 51 <= hits <= 60


@settings(max_examples=8)
@given(st.integers(0, 1000), st.integers(4, 12), st.floats(-0.1, 1.5), st.floats(0.001, 0.3))
def test_without_e_the_profile_is_students_interval_of_a_slope(
    seed: int, count: int, exponent: float, noise: float
) -> None:
    random = np.random.default_rng(seed)
    x = random.uniform(1, 100, count)
    loss = 3 * x**-exponent * np.exp(noise * random.standard_normal(count))
    line = stats.linregress(np.log(x), np.log(loss))
    profile = profile_law(fit_power_law(("flops",), x[:, None], loss, 0.0), COORDINATES["parameters"])
    expected = stats.t.interval(0.95, count - 2, -line.slope, line.stderr)
    np.testing.assert_allclose(profile.interval, expected, rtol=1e-5, atol=1e-7)


BY_BETA = {
    "parameters": lambda g, beta: (g, beta),
    "tokens": lambda g, alpha: (alpha, g),
    "flops": lambda g, beta: (g * beta / (beta - g), beta),
    "size": lambda g, beta: (beta * (1 - g) / g, beta),
}
"""Both exponents, from one that is held and another."""


@pytest.mark.parametrize("floor", [1.1, None])
@pytest.mark.parametrize("exponent", list(COORDINATES))
def test_scipy_reaches_the_limit_at_both_ends_and_less_between(exponent: str, floor: float | None) -> None:
    """By least squares with the exponent held on a grid, from many starts."""
    x = grid(4, 3)
    loss = law(x, 0.5, 0.6, 1.1) * np.exp(0.01 * np.random.default_rng(4).standard_normal(12))
    logs = np.log(x / np.exp(np.log(x).mean(0)))

    def residuals(free: np.ndarray, g: float) -> np.ndarray:
        alpha, beta = BY_BETA[exponent](g, free[2])
        terms = np.exp(np.clip(free[:2] - np.array([alpha, beta]) * logs, -50, 50)).sum(1)
        return np.log(terms + (floor or np.exp(free[3]))) - np.log(loss)

    def least(g: float) -> float:
        starts = [[a, -0.7, free, *([0.1] if floor is None else [])] for a in (-0.7, -2) for free in (0.3, 0.6, 1.0)]
        return 2 * min(optimize.least_squares(residuals, start, args=(g,), x_scale=0.1).cost for start in starts)

    fit = fit_power_law(NAMES, x, loss, floor)
    low, high = profile_law(fit, COORDINATES[exponent]).interval
    lowest, freedom = float(np.sum(fit.residuals**2)), 12 - (4 if floor else 5)
    limit = lowest * stats.f.ppf(0.95, 1, freedom) / freedom
    inside = [least(g) - lowest for g in np.linspace(low, high, 9)]
    np.testing.assert_allclose([inside[0], inside[-1]], limit, rtol=0.02)
    assert max(inside[1:-1]) < limit
    for beyond in (low - 0.1 * (high - low), high + 0.1 * (high - low)):
        assert least(beyond) - lowest > limit


def test_one_run_that_went_wrong_counts_little() -> None:
    x = grid(seeds=2)
    loss = law(x, 0.6, 0.4, 1.1) * np.exp(0.002 * np.random.default_rng(5).standard_normal(len(x)))
    loss[7] *= 1.5
    fit = fit_power_law(NAMES, x, loss, 1.1, delta=0.002, num_draws=1)
    np.testing.assert_allclose(fit.exponents, [0.6, 0.4], rtol=0.06)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            grid(2, 2),
            "^4 cells: the law in parameters and tokens has 4 parameters, expected more cells than these .runs",
        ),
        (grid(1, 9), "^all runs have 1e[+]04 parameters: expected several values, a factor of 2 apart$"),
        (np.stack([np.geomspace(1e4, 1e6, 6), np.full(6, 1e7)], 1), "^all runs have 1e[+]07 tokens: "),
    ],
)
def test_too_little_is_rejected_in_a_line(x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_power_law(NAMES, x, 2.0 + x[:, 0] ** -0.5, 1.0)
