"""How the loss of each architecture scales with parameters, data and FLOPs, and whether the exponents differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import fmean

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy.stats takes a second to import

from triptych.report.statistics.pareto import find_pareto_front
from triptych.report.statistics.power_laws import PowerLaw, fit_power_law
from triptych.report.statistics.significance import CONFIDENCE, adjust_by_holm

Draws = Float[np.ndarray, " draws"]
"""Of one number, such as an exponent."""

VARIABLES = ("flops", "parameters", "tokens")
EXPONENTS = {
    "parameters": "alpha, of parameters",
    "tokens": "beta, of tokens",
    "flops": "of FLOPs",
    "size": "of the best size",
}
"""Exponents of the law in parameters and tokens, and those that follow for the FLOPs C, in proportion to N D. The best
loss falls as C^-(alpha beta / (alpha + beta)); the best size grows as C^(beta / (alpha + beta))."""
SAME_BUDGET = 1.05
"""Runs whose FLOPs differ by at most this ratio have one budget."""
PERCENTILES = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))


@dataclass(frozen=True, slots=True)
class Point:
    """One trained model.

    Attributes:
        name: of its run.
        architecture: as in a summary, or another name.
        seed: of its training.
        parameters: trainable parameters.
        tokens: that the network has read in training.
        flops: training FLOPs.
        loss: on the test set.
    """

    name: str
    architecture: str
    seed: int
    parameters: float
    tokens: float
    flops: float
    loss: float


@dataclass(frozen=True, slots=True)
class Exponent:
    """An exponent, or a difference of two, with its interval.

    Attributes:
        value: of the fit.
        low: the 2.5th percentile over bootstrap draws.
        high: the 97.5th.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class IsoFlop:
    """The loss of models with equal training FLOPs, as a parabola in the logarithm of their size (Hoffmann et al. 2022,
    approach 2): loss = c_0 + c_1 log N + c_2 (log N)^2.

    Attributes:
        flops: mean training FLOPs.
        points: the models.
        coefficients: c_0, c_1, c_2.
        best: N at the minimum; NaN if the parabola opens downwards.
        lowest: the loss there.
        low: the lower end of the 95 % interval of the minimum, by Fieller's theorem (1954), with the same noise for all
            budgets; NaN if the runs do not bound it.
        high: its upper end.
        is_inside: whether the minimum lies between the smallest and the largest size tried.
    """

    flops: float
    points: tuple[Point, ...]
    coefficients: tuple[float, float, float]
    best: float
    lowest: float
    low: float
    high: float
    is_inside: bool


@dataclass(frozen=True, slots=True)
class Ladder:
    """The fits of one architecture.

    Attributes:
        architecture: its name.
        points: its models.
        law: in parameters and tokens.
        exponents: of ``EXPONENTS``.
        draws: of the same, on the bootstrap draws of the law.
        frontiers: by variable, the points (means over seeds) on the Pareto front of that variable and the loss.
        alone: the law of each variable alone, through its frontier; empty if that has too few points.
        iso_flops: by rising FLOPs.
    """

    architecture: str
    points: tuple[Point, ...]
    law: PowerLaw
    exponents: Mapping[str, Exponent]
    draws: Mapping[str, Draws]
    frontiers: Mapping[str, tuple[Point, ...]]
    alone: Mapping[str, PowerLaw]
    iso_flops: tuple[IsoFlop, ...]


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference of an exponent between two architectures.

    Attributes:
        exponent: a key of ``EXPONENTS``.
        first: one architecture.
        second: the other.
        difference: first minus second.
        p: two-sided p-value of no difference: twice the share of draws of the difference on the other side of 0.
        p_holm: the same with Holm's correction (1979) for all differences.
        differ: whether ``p_holm`` is below 5 %.
    """

    exponent: str
    first: str
    second: str
    difference: Exponent
    p: float
    p_holm: float
    differ: bool


def fit_ladder(points: Sequence[Point], irreducible: float | None, delta: float | None, seed: int = 0) -> Ladder:
    """All fits of one architecture.

    Args:
        irreducible: the known lower bound of the loss.
        delta: as in ``fit_power_law``.
        seed: of the draws; must differ between architectures.
    """
    architecture = points[0].architecture
    fit = partial(fit_power_law, irreducible=irreducible, delta=delta, seed=seed)
    try:
        law = fit(("parameters", "tokens"), tabulate(points, "parameters", "tokens"), losses(points))
    except ValueError as error:
        raise ValueError(f"{architecture}: {error}") from None
    frontiers = {name: find_frontier(points, name) for name in VARIABLES}
    alone = {
        name: fit((name,), tabulate(frontier, name), losses(frontier))
        for name, frontier in frontiers.items()
        if len(frontier) > 2 + (irreducible is None)
    }
    draws = derive_exponents(*law.exponent_draws.T)
    values = derive_exponents(*np.array(law.exponents)[:, None])
    exponents = {name: Exponent(float(values[name][0]), *percentile_interval(draws[name])) for name in EXPONENTS}
    return Ladder(architecture, tuple(points), law, exponents, draws, frontiers, alone, fit_iso_flops(points))


def tabulate(points: Sequence[Point], *names: str) -> Float[np.ndarray, "points variables"]:
    """The named variables of each point."""
    return np.array([[getattr(point, name) for name in names] for point in points], float)


def losses(points: Sequence[Point]) -> Float[np.ndarray, " points"]:
    return np.array([point.loss for point in points])


def derive_exponents(alpha: Draws, beta: Draws) -> dict[str, Draws]:
    """All of ``EXPONENTS``, from the two of the law."""
    whole = alpha + beta
    return {"parameters": alpha, "tokens": beta, "flops": alpha * beta / whole, "size": beta / whole}


def percentile_interval(draws: Draws) -> tuple[float, float]:
    """The ends of the 95 % percentile interval."""
    low, high = np.percentile(draws, PERCENTILES)
    return float(low), float(high)


def find_frontier(points: Sequence[Point], variable: str) -> tuple[Point, ...]:
    """The Pareto front of a variable and the loss. Seeds of one size and budget count as one model, by their means."""
    means = [
        Point(
            models[0].name,
            models[0].architecture,
            models[0].seed,
            *(fmean(getattr(model, name) for model in models) for name in ("parameters", "tokens", "flops", "loss")),
        )
        for budget in group_budgets(points)
        for size in sorted({point.parameters for point in budget})
        for models in [[point for point in budget if point.parameters == size]]
    ]
    costs = [(getattr(point, variable), point.loss) for point in means]
    return tuple(means[i] for i in find_pareto_front(costs, higher_is_better=False))


def group_budgets(points: Sequence[Point]) -> list[list[Point]]:
    """Groups points of the same FLOPs, by rising FLOPs."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda point: (point.flops, point.parameters)):
        if groups and point.flops <= SAME_BUDGET * groups[-1][0].flops:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def fit_iso_flops(points: Sequence[Point]) -> tuple[IsoFlop, ...]:
    """A parabola for each budget with three sizes, if there are more such runs than coefficients of their parabolas."""
    budgets = [budget for budget in group_budgets(points) if len({point.parameters for point in budget}) > 2]
    freedom = sum(len(budget) - 3 for budget in budgets)
    if freedom < 1:
        return ()
    middle = float(np.mean([math.log(point.parameters) for budget in budgets for point in budget]))
    fits = []
    for budget in budgets:
        z = np.log([point.parameters for point in budget]) - middle
        design = np.stack([np.ones_like(z), z, z**2], 1)
        coefficients = np.linalg.lstsq(design, losses(budget))[0]
        fits.append((coefficients, np.linalg.inv(design.T @ design), losses(budget) - design @ coefficients))
    noise = sum(float(residuals @ residuals) for _, _, residuals in fits) / freedom
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) ** 2 * noise
    found = []
    for budget, ((c0, c1, c2), inverse, _) in zip(budgets, fits, strict=True):
        best, lowest = (middle - c1 / (2 * c2), c0 - c1**2 / (4 * c2)) if c2 > 0 else (math.nan, math.nan)
        low, high = (middle + end for end in fieller(c1, c2, reach * inverse[1:, 1:]))
        sizes = [point.parameters for point in budget]
        found.append(
            IsoFlop(
                flops=fmean(point.flops for point in budget),
                points=tuple(budget),
                coefficients=(float(c0 - c1 * middle + c2 * middle**2), float(c1 - 2 * c2 * middle), float(c2)),
                best=float(np.exp(best)),
                lowest=float(lowest),
                low=float(np.exp(low)),
                high=float(np.exp(high)),
                is_inside=bool(min(sizes) < np.exp(best) < max(sizes)),
            )
        )
    return tuple(found)


def fieller(c1: float, c2: float, covariance: Float[np.ndarray, "2 2"]) -> tuple[float, float]:
    """The interval of z = -c1 / (2 c2), where the slope c1 + 2 c2 z does not differ significantly from 0: (c1 + 2 c2
    z)^2 <= v_11 + 4 z v_12 + 4 z^2 v_22.

    Args:
        covariance: of c1 and c2, times the square of Student's t.

    Returns:
        its ends; NaN if the curvature c2 is not significantly above 0.
    """
    square = 4 * (c2**2 - covariance[1, 1])
    if c2 <= 0 or square <= 0:
        return math.nan, math.nan
    half = 2 * (c1 * c2 - covariance[0, 1])
    root = math.sqrt(max(half**2 - square * (c1**2 - covariance[0, 0]), 0.0))
    return (-half - root) / square, (-half + root) / square


def contrast(ladders: Sequence[Ladder]) -> list[Contrast]:
    """The differences of the exponents between each pair of architectures."""
    found = []
    for first, second in combinations(ladders, 2):
        for name in EXPONENTS:
            draws = first.draws[name] - second.draws[name]
            value = first.exponents[name].value - second.exponents[name].value
            beyond = min(int(np.sum(draws <= 0)), int(np.sum(draws >= 0)))
            p = min(2 * (beyond + 1) / (len(draws) + 1), 1.0)
            difference = Exponent(value, *percentile_interval(draws))
            found.append((name, first.architecture, second.architecture, difference, p))
    adjusted = adjust_by_holm([p for *_, p in found])
    return [Contrast(*row, p_holm, p_holm < 1 - CONFIDENCE) for row, p_holm in zip(found, adjusted, strict=True)]
