"""The test of two variants over their seeds: is one better, or are they equivalent?

A mean hides runs that did not learn, so there are two outcomes:

1. The share of runs that learned, by Barnard's test.
2. The mean of the runs that learned, by Welch's t, with at least three of each variant.

Tested by tests/report/statistics/test_pair_test.py and, for error rates, tests/report/statistics/test_error_rates.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median

import numpy as np

from triptych.config import counted
from triptych.report.statistics.significance import CONFIDENCE, MIN_SEEDS, Welch, student_interval

LEARNED = 0.1
"""Share of the way from the floor to the best variant's median; a run that got less far has failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of one variant.

    Attributes:
        name: in a sentence.
        values: one per seed; NaN if not finite.
        seeds: of the values.
        grain: the resolution of the values, such as 1 / number of test examples.
        is_bound: whether each value is an upper bound on the right one.
    """

    name: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    grain: float = 0.0
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a metric for some variants.

    Attributes:
        sign: 1 if a higher value is better, otherwise -1.
        floor: the value of guessing; None: unknown.
        ceiling: the best possible value; None: unknown.
        threshold: the worst value of a run that learned: floor + 0.1 (median of the best variant - floor); None:
            unknown.
    """

    sign: int
    floor: float | None = None
    ceiling: float | None = None
    threshold: float | None = None

    @classmethod
    def of(
        cls, samples: Sequence[Sample], *, higher_is_better: bool, floor: float | None, ceiling: float | None
    ) -> "Scale":
        """The scale of these variants. Of a variant whose runs are not finite, the median may be infinitely bad."""
        sign = 1 if higher_is_better else -1
        medians = [median(sign * x if math.isfinite(x) else -math.inf for x in sample.values) for sample in samples]
        if floor is None or max(medians) <= sign * floor:
            return cls(sign, floor, ceiling)
        return cls(sign, floor, ceiling, floor + LEARNED * (sign * max(medians) - floor))

    def learned(self, sample: Sample) -> list[float]:
        """The values of the runs that learned."""
        least = -math.inf if self.threshold is None else self.sign * self.threshold
        return [x for x in sample.values if math.isfinite(x) and self.sign * x >= least]


@dataclass(frozen=True, slots=True)
class PairTest:
    """The test of two variants.

    Attributes:
        learned: the number of runs of each that learned.
        welch: the difference of the means of these runs, first minus second; None with fewer than three of each.
        p_learned: the p-value of equal shares of runs that learned.
        p: the p-value of the claim. For a margin, that of two one-sided tests; otherwise, that of the outcome that
            decides.
        lead: 1 if the first variant is the better one by this outcome, -1 if the second is, 0 if neither is.
        reasons: why these runs cannot decide it, whatever p is.
        more_seeds_help: whether more seeds could decide it.
    """

    learned: tuple[int, int]
    welch: Welch | None
    p_learned: float
    p: float
    lead: int
    reasons: tuple[str, ...]
    more_seeds_help: bool

    @classmethod
    def of(cls, first: Sample, second: Sample, scale: Scale, margin: float | None = None) -> "PairTest":
        """Tests two variants.

        Args:
            margin: the largest difference that counts as none, stated before; None: which variant is better?
        """
        samples = first, second
        runs = [scale.learned(sample) for sample in samples]
        counts, totals = (len(runs[0]), len(runs[1])), (len(first.values), len(second.values))
        welch = Welch.of(runs[0], runs[1], first.grain, second.grain) if min(counts) >= MIN_SEEDS else None
        p_learned = barnard(*counts, *totals)
        p, lead = _decide(welch, p_learned, counts, totals, scale.sign)
        if margin is not None:
            p = 1.0 if welch is None else min(2 * min(welch.p_within(margin), welch.p_beyond(margin)), 1.0)
        no_room = _room_problems(runs, scale, margin)
        if margin is not None and counts != totals:
            no_room.append(f"{sum(totals) - sum(counts)} of {sum(totals)} runs failed")
        again = [problem for sample in samples for problem in _find_copies(sample)]
        final = [*again, *no_room, *_bound_problems(samples, lead, margin)]  # which more seeds do not solve
        return cls(counts, welch, p_learned, p, lead, (*_seed_problems(samples), *final), not final)

    @property
    def doubt(self) -> str:
        """Why p is not small enough."""
        if self.welch is None:
            return (
                f"fewer than {MIN_SEEDS} runs of each learned, and their shares may be equal (p = {self.p_learned:.2g})"
            )
        if self.welch.error == 0:
            return "there is no spread over seeds"
        return "the interval contains 0" if self.welch.p >= 1 - CONFIDENCE else "the better mean has more failed runs"

    def is_within(self, margin: float) -> bool:
        """Whether the difference of the means is less than the margin."""
        return self.welch is not None and abs(self.welch.difference) < margin

    @property
    def winner(self) -> int:
        """1 if the first variant is significantly better, -1 if the second is, otherwise 0."""
        return self.lead if not self.reasons and self.p < 1 - CONFIDENCE else 0


@lru_cache(maxsize=4096)
def barnard(first: int, second: int, num_first: int, num_second: int) -> float:
    """The p-value of Barnard's unconditional test (1947) of equal shares, first of num_first and second of num_second:

        max over q of sum of b(i; num_first, q) b(j; num_second, q), over z(i, j) >= z(first, second)

    with b the binomial probability and z(i, j) = |i / num_first - j / num_second| / sqrt(s (1 - s)), where s is the
    share of both together (Suissa and Shuster 1985).
    """
    q = np.linspace(0.0, 0.5, 501)[:, None]  # 1 - q gives the same sum
    p_first, p_second = (
        np.array([math.comb(n, k) for k in range(n + 1)], float)
        * q ** np.arange(n + 1)
        * (1 - q) ** np.arange(n, -1, -1)
        for n in (num_first, num_second)
    )
    gaps = np.subtract.outer(np.arange(num_first + 1) / num_first, np.arange(num_second + 1) / num_second)
    shares = np.add.outer(np.arange(num_first + 1), np.arange(num_second + 1)) / (num_first + num_second)
    distances = np.abs(gaps) / np.sqrt(np.maximum(shares * (1 - shares), 1e-12))
    is_as_far = (distances >= (1 - 1e-9) * distances[first, second]).astype(float)
    return min(float(np.einsum("qi,ij,qj->q", p_first, is_as_far, p_second).max()), 1.0)


def _decide(
    welch: Welch | None, p_learned: float, counts: Sequence[int], totals: Sequence[int], sign: int
) -> tuple[float, int]:
    """The p-value of the outcome that decides, and the better variant. The means decide only for a variant that did not
    fail more often; the shares, only if the means do not say the opposite."""
    more = counts[0] * totals[1] - counts[1] * totals[0]
    by_share = (p_learned, (more > 0) - (more < 0))
    if welch is None:
        return by_share
    by_mean = (welch.p, sign * ((welch.difference > 0) - (welch.difference < 0)))
    if by_mean[1] * by_share[1] < 0:
        return (p_learned, by_share[1] if welch.p >= 1 - CONFIDENCE else 0)
    return min(by_mean, by_share) if more else by_mean


def _seed_problems(samples: Sequence[Sample]) -> list[str]:
    return [
        f"{sample.name} has {counted(len(sample.values), 'seed')}, expected at least {MIN_SEEDS}"
        for sample in samples
        if len(sample.values) < MIN_SEEDS
    ]


def _find_copies(sample: Sample) -> list[str]:
    again = [seed for seed in sample.seeds if sample.seeds.count(seed) > 1]
    return [f"{sample.name} has several runs of seed {min(again)}"] if again else []


def _bound_problems(samples: tuple[Sample, Sample], lead: int, margin: float | None) -> list[str]:
    """Where a variant would lose by an upper bound alone: its right value may be lower."""
    first, second = samples
    loser = second if lead == 1 else first
    if first.is_bound == second.is_bound or (margin is None and not loser.is_bound):
        return []
    return [f"the values of {(first if first.is_bound else second).name} are upper bounds"]


def _room_problems(runs: Sequence[Sequence[float]], scale: Scale, margin: float | None) -> list[str]:
    """Where both variants are at the floor, or have too little room for a difference of the margin."""
    means = [fmean(values) for values in runs if values]
    if not means:
        return ["no run learned"]
    problems = []
    if scale.floor is not None and not any(_is_above(values, scale) for values in runs):
        problems.append("no variant is better than guessing")
    if margin is not None:
        for name, end in (("floor", scale.floor), ("ceiling", scale.ceiling)):
            if end is not None and all(abs(mean - end) <= 2 * margin for mean in means):
                problems.append(f"both variants are within two margins of the {name}")
    return problems


def _is_above(values: Sequence[float], scale: Scale) -> bool:
    """Whether the 95 % interval of the mean, by Student's t, lies on the better side of the floor."""
    assert scale.floor is not None
    above = [scale.sign * (value - scale.floor) for value in values]
    return bool(above) and (student_interval(above)[0] if len({*above}) > 1 else above[0]) > 0
