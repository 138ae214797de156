"""Intervals of a fitted parameter, and of its difference from that of another fit, by profiles.

With S(g) the least sum of squares where the parameter is held at g, s^2 = min S / (n - p) for n points and p
parameters, and Q(g) = (S(g) - min S) / s^2, the 95 % interval is where Q(g) <= F_0.95(1, n - p) (Venzon and Moolgavkar
1988; Bates and Watts 1988). In a linear model it is Student's.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]  # scipy.stats takes a second to import

from triptych.report.statistics.significance import CONFIDENCE

Values = Float[np.ndarray, " values"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a parameter. Between its values, the root of Q is linear.

    Attributes:
        values: of the parameter, rising.
        roots: sign(g - fitted value) sqrt(Q(g)) of each.
        freedom: n - p.
    """

    values: Values
    roots: Values
    freedom: int

    @classmethod
    def of_draws(cls, draws: Values, freedom: int) -> "Profile":
        """The profile whose intervals are the percentiles of bootstrap draws."""
        shares = (np.arange(len(draws)) + 0.5) / len(draws)
        return cls(np.sort(draws), stdtrit(freedom, shares), freedom)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % interval; infinite where the values do not bound it."""
        (low,), (high,) = self._bound(np.array([_find_limit(self.freedom)]))
        return float(low), float(high)

    def subtract(self, other: "Profile") -> tuple[float, float, float]:
        """The difference d from the parameter of an independent fit, by D(d) = least over g of Q_1(g) + Q_2(g - d), an
        F with 1 and the fewer degrees of freedom.

        Returns:
            the ends of the 95 % interval of d, and the two-sided p-value of d = 0.
        """
        freedom = min(self.freedom, other.freedom)
        limit = _find_limit(freedom)
        both = np.union1d(self.values, other.values)
        both = np.interp(np.arange(0, len(both), 0.1), np.arange(len(both)), both)  # ten per step
        mine, theirs = (np.interp(both, profile.values, profile.roots) for profile in (self, other))
        p = 2 * float(stdtr(freedom, -np.sqrt((mine**2 + theirs**2).min())))
        is_within = np.abs(mine) < limit
        (low,), (high,) = self._bound(np.array([limit]))
        values = np.array([low, *both[is_within], high])
        least, largest = other._bound(np.sqrt(limit**2 - np.array([limit, *mine[is_within], limit]) ** 2))
        return float(np.min(values - largest)), float(np.max(values - least)), p

    def _bound(self, reach: Values) -> tuple[Values, Values]:
        """The least and the largest parameter with sqrt(Q) <= ``reach``; infinite if the outermost value has it."""
        falling, rising = np.maximum.accumulate(self.roots), np.minimum.accumulate(self.roots[::-1])[::-1]
        low: Values = np.interp(-reach, falling, self.values, left=-np.inf)
        high: Values = np.interp(reach, rising, self.values, right=np.inf)
        return low, high


def _find_limit(freedom: int) -> float:
    """The root of F_0.95(1, freedom): a quantile of Student's t."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
