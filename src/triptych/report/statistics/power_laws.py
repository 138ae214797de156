"""Power laws of the loss, fitted to runs.

    L(x_1, ..., x_K) = E + sum over k of A_k x_k^-alpha_k

With parameters N and training tokens D it is L = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022, approach 3). With N,
D or the training FLOPs C alone it is a curve. E, the irreducible loss, is fitted or known.

The fit minimises Huber's function of the residuals r of log L, with a width delta: r^2 / 2 where |r| <= delta, beyond
it delta (|r| - delta / 2). It starts from a grid, since there are local minima.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " points"]
Variables = Float[np.ndarray, "points variables"]
Parameters = Float[np.ndarray, "fits parameters"]
"""Per fit: log A_1, ..., log A_K, alpha_1, ..., alpha_K and, if E is fitted, log E."""

EFFICIENT = 1.345
"""Standard deviations of the noise: at this width, Huber's function has 95 % of the efficiency of least squares under
normal noise (Huber 1981)."""
EXPONENTS, SHARES, SHARES_OF_E = (0.1, 0.4, 1.0), (0.2, 0.5, 0.8), (0.3, 0.6, 0.9)
"""Starting points: exponents; shares of the first term in the reducible loss; shares of E in the lowest loss."""
NUM_DRAWS = 1000
MOST_STEPS = 300
RESCALINGS = 4
"""How often the width is estimated again from the residuals, which contain fewer outlier effects each time."""
NARROWER = 0.25
"""Factor by which Huber's function narrows from fit to fit, until it has the requested width."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A fitted law.

    Attributes:
        names: of the variables.
        coefficients: A_k of each.
        exponents: alpha_k of each.
        irreducible: E.
        is_known: whether E was given, not fitted.
        delta: the width of Huber's function.
        r_squared: of the logarithm of the loss, 1 - sum of r^2 / sum of (log L - mean log L)^2.
        residuals: log of the loss minus log of the law, per run.
        draws: the parameters on bootstrap draws, in the order of ``Parameters``.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    exponents: tuple[float, ...]
    irreducible: float
    is_known: bool
    delta: float
    r_squared: float
    residuals: Vector
    draws: Parameters

    @property
    def exponent_draws(self) -> Float[np.ndarray, "draws variables"]:
        """The exponents on each draw."""
        count = len(self.names)
        return self.draws[:, count : 2 * count]

    def predict(self, x: Variables) -> Vector:
        """The predicted loss."""
        terms: Variables = np.array(self.coefficients) * x ** -np.array(self.exponents)
        loss: Vector = self.irreducible + terms.sum(-1)
        return loss

    def predict_draws(self, x: Variables) -> Float[np.ndarray, "draws points"]:
        """The predicted loss on each draw."""
        logarithms, _ = _logarithms(np.log(x), self.draws, self.irreducible if self.is_known else None)
        loss: Float[np.ndarray, "draws points"] = np.exp(logarithms)
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
    """Fits a law, and fits it again to draws of the residual bootstrap: the fitted losses, plus residuals drawn with
    replacement. With n runs and p parameters, each draw's residuals are scaled by sqrt(n / chi^2), where chi^2 has n -
    p degrees of freedom, because the noise width is itself an estimate.

    Args:
        names: of the variables.
        x: of each run.
        loss: of each run, above 0.
        irreducible: E, if known.
        delta: the width of Huber's function; None: 1.345 standard deviations of the residuals, by their median absolute
            deviation.
        seed: of the draws; must differ between fits that are compared.
    """
    count = len(names)
    freedom = len(loss) - 2 * count - (irreducible is None)
    if freedom < 1:
        fitted = f"{' and '.join(names)}{' and in E' if irreducible is None else ''}"
        raise ValueError(
            f"{len(loss)} runs: the law in {fitted} has {len(loss) - freedom} parameters, expected more runs than these"
        )
    for name, values in zip(names, x.T, strict=True):
        if np.allclose(values, values[0], rtol=1e-3):
            raise ValueError(f"all runs have {values[0]:,.4g} {name}: expected several values, a factor of 2 apart")
    target, middle = np.log(loss), np.log(x).mean(0)
    logs = np.log(x) - middle  # with centred variables, a term depends little on its exponent
    starts = _starts(count, loss, irreducible)
    targets = np.tile(target, (len(starts), 1))
    found, sums = _minimize(logs, targets, starts, irreducible, [np.inf])

    def remainder() -> Vector:
        residuals: Vector = target - _logarithms(logs, found[[np.argmin(sums)]], irreducible)[0][0]
        return residuals

    for _ in range(RESCALINGS if delta is None else 1):
        scale = np.median(np.abs(remainder())) / 0.6745 * np.sqrt(len(loss) / freedom)
        widths = [max(EFFICIENT * float(scale), delta or 1e-9)]
        while delta is not None and widths[-1] > delta:
            widths.append(max(NARROWER * widths[-1], delta))
        found, sums = _minimize(logs, targets, found, irreducible, widths)
    best, residuals = found[[np.argmin(sums)]], remainder()
    fitted = target - residuals
    random = np.random.default_rng(seed)
    wider = np.sqrt(len(loss) / random.chisquare(freedom, (num_draws, 1)))
    drawn = fitted + wider * random.choice(residuals - residuals.mean(), (num_draws, len(loss)))
    draws, _ = _minimize(logs, drawn, np.tile(best, (num_draws, 1)), irreducible, widths[-1:], tolerance=1e-5)
    for parameters in (best, draws):  # A' (x / exp(middle))^-alpha = A x^-alpha
        parameters[:, :count] += middle * parameters[:, count : 2 * count]
    parameters = best[0]
    return PowerLaw(
        names=tuple(names),
        coefficients=tuple(map(float, np.exp(parameters[:count]))),
        exponents=tuple(map(float, parameters[count : 2 * count])),
        irreducible=float(np.exp(parameters[-1])) if irreducible is None else irreducible,
        is_known=irreducible is not None,
        delta=widths[-1],
        r_squared=float(1 - np.sum(residuals**2) / np.sum((target - target.mean()) ** 2)),
        residuals=residuals,
        draws=draws,
    )


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
    logs: Variables, parameters: Parameters, irreducible: float | None
) -> tuple[Float[np.ndarray, "fits points"], Float[np.ndarray, "fits points parameters"]]:
    """The logarithm of the law by its parameters, and its derivatives."""
    count = logs.shape[1]
    coefficients, exponents = parameters[:, None, :count], parameters[:, None, count : 2 * count]
    terms = np.exp(np.clip(coefficients - exponents * logs, -300, 300))
    floor = np.exp(np.minimum(parameters[:, -1:], 300)) if irreducible is None else irreducible
    whole = terms.sum(-1) + floor
    shares = terms / whole[..., None]
    parts = [shares, -logs * shares]
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
) -> tuple[Parameters, Float[np.ndarray, " fits"]]:
    """Runs many fits at once, each with separate targets, by damped Newton steps.

    With J the derivatives of the law, the weights w (1 where |r| <= delta, else 0) give the second derivatives of the
    sum, J' w J. The weights v = min(1, delta / |r|) give those of a parabola that touches Huber's function at r and is
    nowhere below it, so a step to its minimum decreases the sum. A step uses w + lambda v: lambda falls after
    successful steps, towards Newton's method, and rises after failed ones.

    Args:
        widths: of Huber's function, used in turn.
        tolerance: of the parameters.

    Returns:
        the parameters, and the sums, with the last width.
    """
    found = starts.copy()
    law, slopes = _logarithms(logs, found, irreducible)
    residuals = law - targets
    for delta in widths:
        sums, damping, active = _huber(residuals, delta), np.full(len(starts), 0.1), np.arange(len(starts))
        for _ in range(MOST_STEPS):
            r, j = residuals[active], slopes[active]
            size = np.maximum(np.abs(r), 1e-300)
            weights = (size <= delta) + damping[active, None] * np.minimum(1, delta / size)
            curvature = np.einsum("bnp,bn,bnq->bpq", j, weights, j)
            np.einsum("bpp->bp", curvature)[...] *= 1 + 1e-12
            gradient = np.einsum("bnp,bn->bp", j, np.clip(r, -delta, delta))
            step = -_solve(curvature, gradient)
            tried = found[active] + step
            law, slopes_there = _logarithms(logs, tried, irreducible)
            residuals_there = law - targets[active]
            sums_there = _huber(residuals_there, delta)
            is_down = sums_there <= sums[active]
            down = active[is_down]
            found[down], residuals[down] = tried[is_down], residuals_there[is_down]
            slopes[down], sums[down] = slopes_there[is_down], sums_there[is_down]
            damping[active] *= np.where(is_down, 0.1, 10.0)
            active = active[np.where(is_down, np.abs(step).max(1) > tolerance, damping[active] < 1e9)]
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
