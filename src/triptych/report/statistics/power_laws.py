"""Power laws of the loss, fitted to cells: means of runs that differ only in their seeds.

    L(x_1, ..., x_K) = E + sum over k of A_k x_k^-alpha_k

With parameters N and training tokens D it is L = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022, approach 3). With N,
D or the training FLOPs C alone it is a curve. E, the irreducible loss, is fitted or known.

The fit minimises the squares of the residuals r of log L or, with a width delta, Huber's function: r^2 / 2 where |r| <=
delta, beyond it delta (|r| - delta / 2). It starts from a grid, since there are local minima. After least squares,
exponents have intervals by profiles; after Huber's function, by the bootstrap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float

from triptych.report.statistics.intervals import Profile

Vector = Float[np.ndarray, " points"]
Variables = Float[np.ndarray, "points variables"]
Parameters = Float[np.ndarray, "fits parameters"]
"""Per fit: log A_1, ..., log A_K, alpha_1, ..., alpha_K and, if E is fitted, log E."""
EXPONENTS, SHARES, SHARES_OF_E = (0.1, 0.4, 1.0), (0.2, 0.5, 0.8), (0.3, 0.6, 0.9)
"""Starting points: exponents; shares of the first term in the reducible loss; shares of E in the lowest loss."""
NUM_DRAWS = 1000
MOST_STEPS = 60
LARGEST = 20.0
"""Exponents beyond it are not tried: an interval that reaches it is unbounded."""
OFFSETS = np.geomspace(1e-3, 2 * LARGEST, 50)
"""Distances from a fitted exponent at which its profile is computed: each is 24 % more than the one before."""
TINY = 1e-24
"""The least sum of squares of a fit: losses have rounding errors."""
NARROWER = 0.25
"""Factor by which Huber's function narrows from fit to fit, from the squares to the requested width."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Others than the exponents. If the first is held, the exponents stay on a level set of it.

    Attributes:
        of: the coordinates of exponents: numbers, or arrays of them.
        back: the exponents of coordinates, also complex ones.
    """

    of: Callable[..., tuple[Any, ...]]
    back: Callable[..., tuple[np.ndarray, ...]]


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A fitted law.

    Attributes:
        names: of the variables.
        parameters: log A_k of each, alpha_k of each and, if E is fitted, log E.
        irreducible: E.
        is_known: whether E was given, not fitted.
        delta: the width of Huber's function; None: least squares.
        x: of each point.
        loss: of each point.
        exponent_draws: the exponents on bootstrap draws; none after least squares.
    """

    names: tuple[str, ...]
    parameters: Vector
    irreducible: float
    is_known: bool
    delta: float | None
    x: Variables
    loss: Vector
    exponent_draws: Float[np.ndarray, "draws variables"]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """A_k of each variable; at most e^700, the range of a float."""
        return tuple(map(float, np.exp(np.minimum(self.parameters[: len(self.names)], 700))))

    @property
    def exponents(self) -> tuple[float, ...]:
        """alpha_k of each variable."""
        return tuple(map(float, self.parameters[len(self.names) : 2 * len(self.names)]))

    @property
    def freedom(self) -> int:
        """Degrees of freedom: points minus fitted parameters."""
        return len(self.loss) - len(self.parameters)

    @property
    def residuals(self) -> Vector:
        """Log of the loss minus log of the law, per point."""
        residuals: Vector = np.log(self.loss / self.predict(self.x))
        return residuals

    @property
    def r_squared(self) -> float:
        """Of the logarithm of the loss: 1 - sum of r^2 / sum of (log L - mean log L)^2."""
        return float(1 - np.mean(self.residuals**2) / np.var(np.log(self.loss)))

    def predict(self, x: Variables) -> Vector:
        """The predicted loss."""
        logarithms, _ = _logarithms(np.log(x), self.parameters[None], self.irreducible if self.is_known else None)
        loss: Vector = np.exp(logarithms[0])
        return loss


def fit_power_law(
    names: Sequence[str],
    x: Variables,
    loss: Vector,
    irreducible: float | None,
    *,
    delta: float | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> PowerLaw:
    """Fits a law by least squares or, with a ``delta``, by Huber's function.

    With Huber's function, it is fitted again to draws of the residual bootstrap: the fitted losses, plus residuals
    drawn with replacement. With n points and p parameters, each draw's residuals are scaled by sqrt(n / chi^2), where
    chi^2 has n - p degrees of freedom, because the noise width is itself an estimate.

    Args:
        names: of the variables.
        x: of each point, the mean of a cell of runs.
        loss: of each point, above 0.
        irreducible: E, if known.
        delta: the width of Huber's function.
        seed: of the draws; must differ between fits that are compared.
    """
    for name, values in zip(names, x.T, strict=True):
        if np.allclose(values, values[0], rtol=1e-3):
            raise ValueError(f"all runs have {values[0]:,.4g} {name}: expected several values, a factor of 2 apart")
    count = len(names)
    freedom = len(loss) - 2 * count - (irreducible is None)
    if freedom < 1:
        fitted = f"{' and '.join(names)}{' and in E' if irreducible is None else ''}"
        raise ValueError(
            f"{len(loss)} cells: the law in {fitted} has {len(loss) - freedom} parameters, expected more cells than "
            "these (runs that differ only in their seeds are one cell)"
        )
    target, middle = np.log(loss), np.log(x).mean(0)
    logs = np.log(x) - middle  # with centred variables, a term depends little on its exponent
    starts = _starts(count, loss, irreducible)
    targets = np.tile(target, (len(starts), 1))
    widths = [np.inf]
    while delta is not None and widths[-1] > delta:
        widths.append(max(NARROWER * min(widths[-1], 1.0), delta))
    found, sums = _minimize(logs, targets, starts, irreducible, widths)
    best = found[[np.argmin(sums)]]
    fitted = _logarithms(logs, best, irreducible)[0][0]
    residuals, random, shape = target - fitted, np.random.default_rng(seed), (num_draws if delta else 0, len(loss))
    wider = np.sqrt(len(loss) / random.chisquare(freedom, (shape[0], 1)))
    drawn = fitted + wider * random.choice(residuals - residuals.mean(), shape)
    draws, _ = _minimize(logs, drawn, best.repeat(shape[0], 0), irreducible, widths[-1:], tolerance=1e-5)
    best[:, :count] += middle * best[:, count : 2 * count]  # A' (x / exp(middle))^-alpha = A x^-alpha
    return PowerLaw(
        names=tuple(names),
        parameters=best[0],
        irreducible=float(np.exp(best[0, -1])) if irreducible is None else irreducible,
        is_known=irreducible is not None,
        delta=delta,
        x=x,
        loss=loss,
        exponent_draws=draws[:, count : 2 * count],
    )


def profile_law(law: PowerLaw, coordinates: Coordinates) -> Profile:
    """The profile of the first coordinate of the exponents, such as one of them, of a law fitted by least squares.

    It is computed at values ever further from the fitted one. Each fit starts from the law and from other points, and
    then from the solutions at the next values.
    """
    count, irreducible = len(law.names), law.irreducible if law.is_known else None
    logs, target, lowest = np.log(law.x), np.log(law.loss), float(np.sum(law.residuals**2))
    fitted = law.parameters.copy()
    fitted[:count] -= logs.mean(0) * law.exponents
    logs -= logs.mean(0)
    others = _starts(count, law.loss, irreducible)
    starts = np.array([fitted, *others[(others[:, count : 2 * count] == EXPONENTS[1]).all(1)]])
    starts[:, count : 2 * count] = np.stack(coordinates.of(*starts[:, count : 2 * count].T), 1)
    centre = float(np.clip(starts[0, count], -LARGEST, LARGEST))

    def fit(values: Vector, starts: Float[np.ndarray, "starts values parameters"]) -> tuple[Parameters, Vector]:
        """Per value, the best fit of several starts, and the root of the profile."""
        starts[..., count] = values
        flat = starts.reshape(-1, starts.shape[-1])
        targets = np.tile(target, (len(flat), 1))
        found, sums = _minimize(logs, targets, flat, irreducible, [np.inf], 1e-5, coordinates)
        best = sums.reshape(-1, len(values)).argmin(0) * len(values) + np.arange(len(values))
        rise = np.maximum(2 * sums[best] - lowest, 0) * law.freedom / max(lowest, TINY)
        return found[best], np.sign(values - centre) * np.sqrt(rise)

    values = np.unique(np.clip(centre + np.outer([-1, 0, 1], OFFSETS), -LARGEST, LARGEST))
    found, _ = fit(values, starts[:, None].repeat(len(values), 1))
    _, roots = fit(values, np.stack([found, np.roll(found, 1, 0), np.roll(found, -1, 0)]))
    return Profile(values, roots, law.freedom)


def _starts(num_variables: int, loss: Vector, irreducible: float | None) -> Parameters:
    """A grid of starting points for centred variables."""
    lowest, middle = float(loss.min()), float(np.median(loss))
    floors = [irreducible] if irreducible is not None else [share * lowest for share in SHARES_OF_E]
    shares = SHARES if num_variables == 2 else (1.0,)
    starts = []
    for floor, share, *exponents in product(floors, shares, *[EXPONENTS] * num_variables):
        reducible = max(middle - floor, 1e-3 * lowest)
        terms = np.log([reducible * share, reducible * (1 - share)][:num_variables])
        starts.append([*terms, *exponents, *([np.log(floor)] if irreducible is None else [])])
    return np.array(starts)


def _logarithms(
    logs: Variables, parameters: Parameters, irreducible: float | None, coordinates: Coordinates | None = None
) -> tuple[Float[np.ndarray, "fits points"], Float[np.ndarray, "fits points parameters"]]:
    """The logarithm of the law by its parameters, and its derivatives; in coordinates, by these, the first held."""
    count = logs.shape[1]
    coefficients, exponents = parameters[:, None, :count], parameters[:, None, count : 2 * count]
    if coordinates is not None:  # a complex step gives the derivatives by the free coordinate
        first, *free = np.moveaxis(exponents, -1, 0)
        moved = np.stack(coordinates.back(first, *(u + 1e-30j for u in free)), -1)
        exponents = moved.real
    terms = np.exp(np.clip(coefficients - exponents * logs, -300, 300))
    floor = np.exp(np.minimum(parameters[:, -1:], 300)) if irreducible is None else irreducible
    whole = terms.sum(-1) + floor
    shares = terms / whole[..., None]
    parts = [shares, -logs * shares]
    if coordinates is not None:
        by_free = np.sum(parts[1] * moved.imag * 1e30, -1, keepdims=True)
        parts[1] = np.concatenate([np.zeros((*by_free.shape[:2], count - 1)), by_free], -1)
    if irreducible is None:
        parts.append((floor / whole)[..., None])
    return np.log(whole), np.concatenate(parts, -1)


def _minimize(
    logs: Variables,
    targets: Float[np.ndarray, "fits points"],
    starts: Parameters,
    irreducible: float | None,
    widths: Sequence[float],
    tolerance: float = 1e-9,
    coordinates: Coordinates | None = None,
) -> tuple[Parameters, Float[np.ndarray, " fits"]]:
    """Runs many fits at once, each with separate targets, by damped Newton steps.

    With J the derivatives of the law, the weights w (1 where |r| <= delta, else 0) give the second derivatives of the
    sum, J' w J. The weights v = min(1, delta / |r|) give those of a parabola that touches Huber's function at r and is
    nowhere below it, so a step to its minimum decreases the sum. A step uses w + lambda v: lambda falls after
    successful steps, towards Newton's method, and rises after failed ones. It also raises the diagonal (Marquardt
    1963), or steps along flat valleys would be too long.

    Args:
        widths: of Huber's function, used in turn.
        tolerance: of the parameters; its square, of the sums.
        coordinates: instead of the exponents, of which the first is held.

    Returns:
        the parameters, and the sums, with the last width.
    """
    found = starts.copy()
    law, slopes = _logarithms(logs, found, irreducible, coordinates)
    residuals = law - targets
    for delta in widths:
        sums, damping, active = _huber(residuals, delta), np.full(len(starts), 0.1), np.arange(len(starts))
        for _ in range(MOST_STEPS):
            r, j = residuals[active], slopes[active]
            size = np.maximum(np.abs(r), 1e-300)
            weights = (size <= delta) + damping[active, None] * np.minimum(1, delta / size)
            curvature = np.einsum("bnp,bn,bnq->bpq", j, weights, j)
            diagonal = np.einsum("bpp->bp", curvature)
            diagonal *= 1 + np.maximum(damping[active, None], 1e-12)
            diagonal[diagonal == 0] = 1  # a held parameter stays
            gradient = np.einsum("bnp,bn->bp", j, np.clip(r, -delta, delta))
            step = -_solve(curvature, gradient)
            tried = found[active] + step
            law, slopes_there = _logarithms(logs, tried, irreducible, coordinates)
            residuals_there = law - targets[active]
            sums_there = _huber(residuals_there, delta)
            gain = sums[active] - sums_there
            is_down = gain >= 0
            down = active[is_down]
            found[down], residuals[down] = tried[is_down], residuals_there[is_down]
            slopes[down], sums[down] = slopes_there[is_down], sums_there[is_down]
            damping[active] *= np.where(is_down, 0.1, 10.0)
            is_moving = (np.abs(step).max(1) > tolerance) & (gain > tolerance**2 * sums[active])
            active = active[np.where(is_down, is_moving, damping[active] < 1e9)]
            if not len(active):
                break
    return found, sums


def _solve(
    matrices: Float[np.ndarray, "fits parameters parameters"], vectors: Parameters
) -> Float[np.ndarray, "fits parameters"]:
    """The solution of each system; a step of 0 if a vanished term makes it singular."""
    is_sound = np.isfinite(matrices).all((1, 2)) & (np.einsum("bpp->bp", matrices) > 1e-250).all(1)
    matrices = np.where(is_sound[:, None, None], matrices, np.eye(matrices.shape[1]))
    return np.linalg.solve(matrices, np.where(is_sound[:, None], vectors, 0.0)[..., None])[..., 0]


def _huber(residuals: Float[np.ndarray, "fits points"], delta: float) -> Float[np.ndarray, " fits"]:
    """The sums of Huber's function."""
    size = np.minimum(np.abs(residuals), delta)
    sums: Float[np.ndarray, " fits"] = np.sum(size * (np.abs(residuals) - size / 2), -1)
    return sums
