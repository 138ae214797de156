"""Means of configurations over seeds, and differences between architectures over seeds and examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev

from triptych.report.statistics.bootstrap import Paired, are_paired, paired_bootstrap, terms_of
from triptych.report.statistics.significance import Welch, student_interval
from triptych.report.statistics.verdicts import ComparedConfig, Group, Verdict


@dataclass(frozen=True, slots=True)
class SeedSummary:
    """The values of one configuration on the test set.

    Attributes:
        name: of the configuration.
        architecture: of its runs.
        seeds: of the runs with a finite value.
        mean: of the values; NaN without one.
        deviation: the standard deviation over seeds; NaN for fewer than two.
        low: the lower end of the 95 % interval of the mean, by Student's t; NaN for fewer than two.
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
class PairDifference:
    """The difference of two architectures, each with its configuration that is best on the validation set.

    Attributes:
        first: its name.
        second: its name.
        difference: of the means, first minus second.
        low: the lower end of its 95 % interval over seeds, by Welch's t; NaN for fewer than two seeds of either.
        high: its upper end.
        paired: over the test examples, for fixed seeds; None without predictions for the same examples.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    paired: Paired | None


def summarize_configurations(group: Group) -> list[SeedSummary]:
    """Summarizes each configuration of a group."""
    return [_standing(group, contender) for contender in group.contenders]


def describe_training(group: Group) -> list[dict[str, str]]:
    """A row per configuration: its seeds, failed runs, the number of configurations tried of its level, the step of the
    best validation and the last step (means over the runs), and the dates of training. Columns that no record fills are
    left out."""
    found, tried, rows = group.by_level(), group.num_tried(), list[dict[str, str]]()
    scale = group.scale([group.sample(group.best(contenders)) for contenders in found.values()])
    for level, contender in [(level, one) for level, contenders in found.items() for one in contenders]:
        runs, sample = contender.runs, group.sample(contender)
        best = [run.best_step for run in runs if run.best_step is not None]
        days = sorted(time[:10] for run in runs for time in (run.began, run.ended) if time)
        row = {
            "configuration": contender.name,
            "seeds": ", ".join(map(str, sample.seeds)),
            "failed runs": str(len(runs) - len(scale.learned(sample))),
            "trials": str(tried[level]),
            "best step": f"{fmean(best):,.0f}" if best else "",
            "last step": f"{fmean(run.steps for run in runs):,.0f}",
            "dates": " to ".join(dict.fromkeys((*days[:1], *days[-1:]))),
        }
        rows.append(row)
    return [{head: text for head, text in row.items() if any(other[head] for other in rows)} for row in rows]


def compare_pairs(group: Group) -> list[PairDifference]:
    """Compares each pair of architectures in a group; empty if they are not comparable."""
    found = [] if group.not_comparable else group.by_level().values()
    chosen = [group.best(contenders) for contenders in found]
    return [_duel(group, first, second) for first, second in combinations(chosen, 2)]


def note_test_noise(group: Group, verdict: Verdict, pairs: Sequence[PairDifference]) -> Verdict:
    """Adds to the text of a winner which leads are within the noise of the test set: those whose interval over test
    examples contains 0."""
    if verdict.winner is None:
        return verdict
    name, close = group.best(group.by_level()[verdict.winner]).name, list[str]()
    for pair in pairs:
        if name in (pair.first, pair.second) and pair.paired is not None and pair.paired.low <= 0 <= pair.paired.high:
            close.append(pair.second if pair.first == name else pair.first)
    said = (
        f" For these weights, the lead over {' and '.join(close)} is within the noise of the test set." if close else ""
    )
    return replace(verdict, text=verdict.text + said)


def _standing(group: Group, contender: ComparedConfig) -> SeedSummary:
    finite = [run for run in contender.runs if math.isfinite(group.value(run))]
    values = [group.value(run) for run in finite]
    return SeedSummary(
        contender.name,
        contender.architecture,
        tuple(run.seed for run in finite),
        fmean(values) if values else math.nan,
        stdev(values) if len(values) > 1 else math.nan,
        *student_interval(values),
    )


def _duel(group: Group, first: ComparedConfig, second: ComparedConfig) -> PairDifference:
    a, b = ([group.value(run) for run in contender.runs] for contender in (first, second))
    low, high = Welch.of(a, b).interval if min(len(a), len(b)) > 1 else (math.nan, math.nan)
    return PairDifference(first.name, second.name, fmean(a) - fmean(b), low, high, _paired(group, first, second))


def _paired(group: Group, first: ComparedConfig, second: ComparedConfig) -> Paired | None:
    runs = [*first.runs, *second.runs]
    if not are_paired(runs) or not all(math.isfinite(group.value(run)) for run in runs):
        return None
    known = [terms for run in runs if (terms := terms_of(group.metric, run)) is not None]
    count = len(first.runs)
    return paired_bootstrap(known[:count], known[count:]) if len(known) == len(runs) else None
