"""Where each configuration stands over its seeds, and by how much two architectures differ over seeds and examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy.stats takes a second to import

from triptych.report.statistics.bootstrap import Paired, are_paired, paired_bootstrap, terms_of
from triptych.report.statistics.significance import CONFIDENCE, Welch
from triptych.report.statistics.verdicts import Contender, Group


@dataclass(frozen=True, slots=True)
class Standing:
    """The values of one configuration on the test set.

    Attributes:
        name: of the configuration.
        architecture: of its runs.
        seeds: of the runs with a finite value.
        mean: of the values; NaN without one.
        deviation: the standard deviation over seeds; NaN for fewer than two.
        low: the lower end of the 95 % interval of the mean, by Student's t; NaN likewise.
        high: its upper end.
    """

    name: str
    architecture: str
    seeds: tuple[int, ...]
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Duel:
    """The difference of two architectures, each by its configuration that is best on the validation set.

    Attributes:
        first: its name.
        second: its name.
        difference: of the means, first less second.
        low: the lower end of its 95 % interval over seeds, by Welch's t; NaN for fewer than two seeds of either.
        high: its upper end.
        paired: over the test examples, the seeds held; None: the answers are not there, or not to the same examples.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    paired: Paired | None


def standings(group: Group) -> list[Standing]:
    """Each configuration of a group."""
    return [_standing(group, contender) for contender in group.contenders]


def duels(group: Group) -> list[Duel]:
    """Each two architectures of a group; none where they cannot be compared."""
    found = [] if group.not_comparable else group.by_architecture().values()
    chosen = [group.best(contenders) for contenders in found]
    return [_duel(group, first, second) for first, second in combinations(chosen, 2)]


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean by Student's t.

    Args:
        values: one a seed.

    Returns:
        the lower and the upper end; NaN for fewer than two values.
    """
    if len(values) < 2:
        return math.nan, math.nan
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def _standing(group: Group, contender: Contender) -> Standing:
    finite = [run for run in contender.runs if math.isfinite(group.value(run))]
    values = [group.value(run) for run in finite]
    return Standing(
        contender.name,
        contender.architecture,
        tuple(run.seed for run in finite),
        fmean(values) if values else math.nan,
        stdev(values) if len(values) > 1 else math.nan,
        *student_interval(values),
    )


def _duel(group: Group, first: Contender, second: Contender) -> Duel:
    a, b = ([group.value(run) for run in contender.runs] for contender in (first, second))
    low, high = Welch.of(a, b).interval if min(len(a), len(b)) > 1 else (math.nan, math.nan)
    return Duel(first.name, second.name, fmean(a) - fmean(b), low, high, _paired(group, first, second))


def _paired(group: Group, first: Contender, second: Contender) -> Paired | None:
    runs = [*first.runs, *second.runs]
    if not are_paired(runs) or not all(math.isfinite(group.value(run)) for run in runs):
        return None
    sides = [[terms_of(group.metric, run) for run in contender.runs] for contender in (first, second)]
    known = [[terms for terms in side if terms is not None] for side in sides]
    is_whole = all(len(some) == len(side) for some, side in zip(known, sides, strict=True))
    return paired_bootstrap(*known) if is_whole else None
