"""How the loss of each architecture scales with parameters, data and FLOPs, and whether the exponents differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from statistics import fmean, geometric_mean

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy.stats takes a second to import

from triptych.config.wording import counted
from triptych.report.statistics.intervals import Profile
from triptych.report.statistics.pareto import find_pareto_front
from triptych.report.statistics.power_laws import Coordinates, PowerLaw, fit_power_law, profile_law
from triptych.report.statistics.significance import CONFIDENCE, adjust_by_holm

VARIABLES = ("flops", "parameters", "tokens")
EXPONENTS = {
    "parameters": "alpha, of parameters",
    "tokens": "beta, of tokens",
    "flops": "of FLOPs",
    "size": "of the best size",
}
"""Exponents of the law in parameters and tokens, and those that follow for the FLOPs C, in proportion to N D. The best
loss falls as C^-(alpha beta / (alpha + beta)); the best size grows as C^(beta / (alpha + beta))."""
COORDINATES = {
    "parameters": Coordinates(lambda *exponents: exponents, lambda *exponents: exponents),
    "tokens": Coordinates(lambda a, b: (b, a), lambda g, u: (u, g)),
    "flops": Coordinates(
        lambda a, b: (a * b / (a + b), a - b),
        lambda g, u: tuple(g + (np.sqrt(4 * g**2 + u**2) + sign * u) / 2 for sign in (1, -1)),
    ),
    "size": Coordinates(lambda a, b: (b / (a + b), a + b), lambda g, u: ((1 - g) * u, g * u)),
}
"""Each of ``EXPONENTS`` as a function g of alpha and beta, with another number u, so that both follow from g and u."""
SAME_BUDGET = 1.05
"""Runs whose FLOPs differ by at most this ratio have one budget."""
GOOD = 0.95
"""Below this R squared, a law does not describe the runs, and its exponents are not judged."""
MORE_CELLS = 4
"""A law is judged if it has at least this many more cells than parameters."""


@dataclass(frozen=True, slots=True)
class Point:
    """One trained model.

    Attributes:
        name: of its run.
        architecture: as in a summary, or another name.
        seed: of its training; None if unknown.
        parameters: trainable parameters.
        tokens: that the network has read in training.
        flops: training FLOPs.
        loss: on the test set.
    """

    name: str
    architecture: str
    seed: int | None
    parameters: float
    tokens: float
    flops: float
    loss: float


@dataclass(frozen=True, slots=True)
class Exponent:
    """An exponent, or a difference of two, with its interval.

    Attributes:
        value: of the fit.
        low: the lower end of its 95 % interval; -inf if the data do not bound it.
        high: the upper end.
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
        cells: their means over seeds, to which everything is fitted.
        law: in parameters and tokens.
        exponents: of ``EXPONENTS``.
        profiles: of the same.
        frontiers: by variable, the cells on the Pareto front of that variable and the loss.
        alone: the law of each variable alone, through its frontier; empty if that has too few points.
        iso_flops: by rising FLOPs.
    """

    architecture: str
    points: tuple[Point, ...]
    cells: tuple[Point, ...]
    law: PowerLaw
    exponents: Mapping[str, Exponent]
    profiles: Mapping[str, Profile]
    frontiers: Mapping[str, tuple[Point, ...]]
    alone: Mapping[str, PowerLaw]
    iso_flops: tuple[IsoFlop, ...]

    @property
    def residuals(self) -> Float[np.ndarray, " points"]:
        """Log of the loss of each model minus log of the law."""
        predicted = self.law.predict(tabulate(self.points, *self.law.names))
        residuals: Float[np.ndarray, " points"] = np.log(losses(self.points) / predicted)
        return residuals

    @property
    def doubt(self) -> str:
        """Why its exponents are not judged; empty if they are."""
        expected = len(self.law.parameters) + MORE_CELLS
        if len(self.cells) < expected:
            return f"{self.architecture} has {counted(len(self.cells), 'cell')}, expected at least {expected}"
        if self.law.r_squared < GOOD:
            share = min(round(100 * self.law.r_squared), 94)
            return f"the law of {self.architecture} explains only {share} % of the variance of log loss"
        return ""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference of an exponent between two architectures.

    Attributes:
        exponent: a key of ``EXPONENTS``.
        first: one architecture.
        second: the other.
        difference: first minus second.
        p: two-sided p-value of no difference.
        doubt: why the difference is not judged; empty if it is.
        p_holm: the p-value with Holm's correction (1979) for all differences.
        differ: whether ``p_holm`` is below 5 %, and there is no doubt.
    """

    exponent: str
    first: str
    second: str
    difference: Exponent
    p: float
    doubt: str
    p_holm: float
    differ: bool

    @property
    def outcome(self) -> str:
        """In words."""
        words = "significant" if self.differ else "not significant"
        return f"inconclusive: {self.doubt}" if self.doubt else words


def fit_ladder(points: Sequence[Point], irreducible: float | None, delta: float | None, seed: int = 0) -> Ladder:
    """All fits of one architecture.

    Args:
        irreducible: the known lower bound of the loss.
        delta: as in ``fit_power_law``: with a width, intervals are those of bootstrap draws.
        seed: of the draws; must differ between architectures.
    """
    architecture = points[0].architecture
    cells = average_cells(points)
    fit = partial(fit_power_law, irreducible=irreducible, delta=delta, seed=seed)
    try:
        law = fit(("parameters", "tokens"), tabulate(cells, "parameters", "tokens"), losses(cells))
    except ValueError as error:
        raise ValueError(f"{architecture}: {error}") from None
    frontiers = {name: find_frontier(cells, name) for name in VARIABLES}
    alone = {
        name: fit((name,), tabulate(frontier, name), losses(frontier))
        for name, frontier in frontiers.items()
        if len(frontier) > 2 + (irreducible is None)
    }
    profiles = {name: profile_exponent(law, name) for name in EXPONENTS}
    exponents = {
        name: Exponent(COORDINATES[name].of(*law.exponents)[0], *profile.interval) for name, profile in profiles.items()
    }
    iso_flops = fit_iso_flops(cells)
    return Ladder(architecture, tuple(points), cells, law, exponents, profiles, frontiers, alone, iso_flops)


def profile_exponent(law: PowerLaw, exponent: str = "parameters") -> Profile:
    """The profile of one of ``EXPONENTS``, from the draws of a law fitted by Huber's function. The default is the first
    exponent, the only one of a law in one variable."""
    if law.delta is None:
        return profile_law(law, COORDINATES[exponent])
    return Profile.of_draws(COORDINATES[exponent].of(*law.exponent_draws.T)[0], law.freedom)


def tabulate(points: Sequence[Point], *names: str) -> Float[np.ndarray, "points variables"]:
    """The named variables of each point."""
    return np.array([[getattr(point, name) for name in names] for point in points], float)


def losses(points: Sequence[Point]) -> Float[np.ndarray, " points"]:
    return np.array([point.loss for point in points])


def average_cells(points: Sequence[Point]) -> tuple[Point, ...]:
    """One point per size and budget: the means over its seeds, and the geometric mean of the losses. A model without a
    seed is a cell.

    Laws are fitted to log L. The mean of log L over runs has the same expectation for any number of runs; the logarithm
    of their mean loss rises with that number.
    """
    cells: dict[tuple[int, float, str], list[Point]] = {}
    for budget, models in enumerate(group_budgets(points)):
        for model in models:
            cells.setdefault((budget, model.parameters, model.name if model.seed is None else ""), []).append(model)
    return tuple(
        replace(
            models[0],
            name=models[0].name if len(models) == 1 else f"mean of {len(models)} runs",
            tokens=fmean(model.tokens for model in models),
            flops=fmean(model.flops for model in models),
            loss=geometric_mean(model.loss for model in models),
        )
        for models in cells.values()
    )


def find_frontier(cells: Sequence[Point], variable: str) -> tuple[Point, ...]:
    """The Pareto front of a variable and the loss."""
    costs = [(getattr(cell, variable), cell.loss) for cell in cells]
    return tuple(cells[i] for i in find_pareto_front(costs, higher_is_better=False))


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
    """A parabola for each budget with three sizes. Without a budget of four, their intervals are unknown."""
    budgets = [budget for budget in group_budgets(points) if len({point.parameters for point in budget}) > 2]
    if not budgets:
        return ()
    freedom = sum(len(budget) - 3 for budget in budgets)
    middle = float(np.mean([math.log(point.parameters) for budget in budgets for point in budget]))
    fits = []
    for budget in budgets:
        z = np.log([point.parameters for point in budget]) - middle
        design = np.stack([np.ones_like(z), z, z**2], 1)
        coefficients = np.linalg.lstsq(design, losses(budget))[0]
        fits.append((coefficients, np.linalg.inv(design.T @ design), losses(budget) - design @ coefficients))
    noise = sum(float(residuals @ residuals) for _, _, residuals in fits) / freedom if freedom else math.nan
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
            value = first.exponents[name].value - second.exponents[name].value
            low, high, p = first.profiles[name].subtract(second.profiles[name])
            doubt = "; ".join(filter(None, (first.doubt, second.doubt)))
            found.append((name, first.architecture, second.architecture, Exponent(value, low, high), p, doubt))
    adjusted = adjust_by_holm([row[4] for row in found])
    return [
        Contrast(*row, p_holm, p_holm < 1 - CONFIDENCE and not row[5])
        for row, p_holm in zip(found, adjusted, strict=True)
    ]
