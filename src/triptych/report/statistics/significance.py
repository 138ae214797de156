"""Significance of differences over seeds: Welch's t, equivalence, and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]  # scipy.stats takes a second to import

CONFIDENCE = 0.95
POWER = 0.8
"""Desired probability of detecting a difference as large as observed."""
MIN_SEEDS, MOST_SEEDS = 3, 100
"""With two seeds of each variant, t names a false winner in 6 to 13 %, depending on the spreads."""
FALSE_WINNER = (5, 7)
"""The probability of a false winner in percent, if the seeds were fixed before the runs: about this much with equal
spreads, and at most this much with any (tests/report/statistics/test_error_rates.py)."""


@dataclass(frozen=True, slots=True)
class Welch:
    """The difference of two means by Welch's t, without assuming equal variances. With few seeds and unequal spreads,
    Welch and Satterthwaite's degrees of freedom are too many; they are capped at 2 min(n) - 2.

    Attributes:
        difference: of the means, first minus second.
        error: the standard error of the difference.
        freedom: the lesser of (a + b)^2 / (a^2 / (m - 1) + b^2 / (n - 1)) and 2 min(m, n) - 2, where a and b are the
            squared standard errors of m and n seeds.
    """

    difference: float
    error: float
    freedom: float

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float], *grains: float) -> "Welch":
        """From one value per seed, at least two per side.

        Args:
            grains: of each side, the resolution of its values: rounding adds grain² / 12 to their variance.
        """
        sides = zip((first, second), grains or (0.0, 0.0), strict=True)
        a, b = ((variance(values) + grain**2 / 12) / len(values) for values, grain in sides)
        parts = a**2 / (len(first) - 1) + b**2 / (len(second) - 1)
        capped = 2 * min(len(first), len(second)) - 2
        freedom = min((a + b) ** 2 / parts, capped) if parts else capped
        return cls(fmean(first) - fmean(second), math.sqrt(a + b), freedom)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval; NaN if both variances are 0."""
        if not self.error:
            return math.nan, math.nan
        half = self.error * _quantile(self.freedom, (1 + CONFIDENCE) / 2)
        return self.difference - half, self.difference + half

    @property
    def p(self) -> float:
        """The two-sided p-value of no difference; 1 if both variances are 0, since no test applies."""
        return 2 * self._tail(abs(self.difference))

    def p_within(self, margin: float) -> float:
        """The p-value of a difference of at least ``margin``, by two one-sided tests (Schuirmann 1987); small if it is
        less."""
        return self._tail(margin - abs(self.difference))

    def p_beyond(self, margin: float) -> float:
        """The p-value of a difference of at most ``margin``; small if it is more."""
        return self._tail(abs(self.difference) - margin)

    def _tail(self, distance: float) -> float:
        """The probability that t exceeds ``distance`` / ``error``."""
        return float(stdtr(self.freedom, -distance / self.error)) if self.error else 0.5


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the 95 % confidence interval of the mean by Student's t, from one value per seed; NaN for fewer than
    two."""
    if len(values) < 2:
        return math.nan, math.nan
    half = _quantile(len(values) - 1, (1 + CONFIDENCE) / 2) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m - k + 1, not below the smaller ones (Holm 1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min((len(p_values) - rank) * p_values[i], 1.0))
        adjusted[i] = highest
    return adjusted


def pool_deviations(first: Sequence[float], second: Sequence[float]) -> float:
    """The standard deviation over seeds, from the mean of both variances."""
    return math.sqrt((variance(first) + variance(second)) / 2)


def seeds_to_decide(
    distance: float, deviation: float, alpha: float = 1 - CONFIDENCE, power: float = POWER
) -> int | None:
    """The number of seeds per side that detects a difference of means with probability ``power``.

    Args:
        distance: of the difference from the value to rule out.
        deviation: the standard deviation over seeds.
        alpha: of the test, two-sided; with Holm's correction for m tests, divided by m.

    Returns:
        the least number n with distance >= (t_(1 - alpha / 2) + t_power) deviation sqrt(2 / n), t of 2 n - 2 degrees of
            freedom; None if n exceeds 100, or the distance is 0 or less.
    """
    for count in range(MIN_SEEDS, MOST_SEEDS + 1) if distance > 0 else ():
        freedom = 2 * count - 2
        both = _quantile(freedom, 1 - alpha / 2) + _quantile(freedom, power)
        if distance >= both * deviation * math.sqrt(2 / count):
            return count
    return None


def _quantile(freedom: float, share: float) -> float:
    return float(stdtrit(min(freedom, 1e9), share))
