"""Means of configurations over seeds, and differences between architectures over seeds and examples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float

from triptych.report.statistics.blocks import average_over_blocks
from triptych.report.statistics.bootstrap import Paired, Terms, are_paired, paired_bootstrap, resample, terms_of
from triptych.report.statistics.groups import MOST_LEVELS, ComparedConfig, Group
from triptych.report.statistics.pair_test import Sample
from triptych.report.statistics.significance import Welch, student_interval
from triptych.report.statistics.verdicts import Verdict


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
        block: within which they are compared, or the mean over blocks; empty without blocks.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    paired: Paired | None
    block: str = ""


def summarize_configurations(group: Group) -> list[SeedSummary]:
    """Summarizes each configuration of a group."""
    return [_standing(group, contender) for contender in group.contenders]


def describe_training(group: Group) -> list[dict[str, str]]:
    """A row per configuration: its seeds, failed runs, the number of configurations tried of its level, the step of the
    best validation and the last step (means over the runs), and the dates of training. Failed runs and trials are those
    within a block. Columns that no record fills are left out."""
    rows, names = list[dict[str, str]](), {run.directory: one.name for one in group.contenders for run in one.runs}
    for block in group.blocks.values():
        tried, scale = block.num_tried, block.scale([*block.samples.values()])
        for level, contender in [(level, one) for level, found in block.by_level.items() for one in found]:
            runs, sample = contender.runs, Sample("", tuple(map(group.value, contender.runs)), ())
            best = [run.best_step for run in runs if run.best_step is not None]
            days = sorted(time[:10] for run in runs for time in (run.began, run.ended) if time)
            row = {
                "configuration": names[runs[0].directory],
                "seeds": ", ".join(str(run.seed) for run in runs),
                "failed runs": str(len(runs) - len(scale.learned(sample))),
                "trials": str(tried[level]),
                "best step": f"{fmean(best):,.0f}" if best else "",
                "last step": f"{fmean(run.steps for run in runs):,.0f}",
                "dates": " to ".join(dict.fromkeys((*days[:1], *days[-1:]))),
            }
            rows.append(row)
    return [{head: text for head, text in row.items() if any(other[head] for other in rows)} for row in rows]


def compare_pairs(group: Group) -> list[PairDifference]:
    """Compares each pair of architectures in a group, within each block and over them; with more than ``MOST_LEVELS``
    levels, only the best one with each other. Empty if they are not comparable."""
    blocks = group.shared_blocks
    if any(block.not_comparable for block in blocks.values()):
        return []
    scopes = [{label: block} for label, block in blocks.items()] + ([blocks] if len(blocks) > 1 else [])
    draws = {label: _resample(block) for label, block in blocks.items()}
    levels = [*group.by_level]
    pairs = [*combinations(levels, 2)]
    if len(levels) > MOST_LEVELS:
        sign = 1 if group.metric.higher_is_better else -1
        best = max(levels, key=lambda x: fmean(sign * fmean(block.samples[x].values) for block in blocks.values()))
        pairs = [(best, other) for other in levels if other != best]
    return [_duel(scope, *pair, draws) for pair in pairs for scope in scopes]


def note_test_noise(group: Group, verdict: Verdict, pairs: Sequence[PairDifference]) -> Verdict:
    """Adds to the text of a winner which leads are within the noise of the test set: those whose interval over test
    examples contains 0."""
    if verdict.winner is None:
        return verdict
    close = list[str]()
    for pair in pairs:
        if pair.paired is None or not pair.paired.low <= 0 <= pair.paired.high:
            continue
        name = group.blocks[pair.block].chosen[verdict.winner].name
        if name in (pair.first, pair.second):
            other = pair.second if pair.first == name else pair.first
            close.append(f"{other} ({pair.block})" if pair.block else other)
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


Draws = Mapping[str, Float[np.ndarray, " draws"]]
"""Of each run, by its directory, the result of ``resample``."""


def _duel(blocks: Mapping[str, Group], first: str, second: str, draws: Mapping[str, Draws]) -> PairDifference:
    values = [(block.samples[first].values, block.samples[second].values) for block in blocks.values()]
    low, high = math.nan, math.nan
    if min(len(found) for pair in values for found in pair) > 1:
        low, high = average_over_blocks([Welch.of(*pair) for pair in values]).interval
    difference = fmean(fmean(a) - fmean(b) for a, b in values)
    (label, block), *others = blocks.items()
    if others:
        name = f"mean over {len(blocks)} blocks"
        return PairDifference(block.word(first), block.word(second), difference, low, high, None, name)
    one, other = block.chosen[first], block.chosen[second]
    known = [[draws[label][run.directory] for run in x.runs if run.directory in draws[label]] for x in (one, other)]
    is_paired = are_paired([*one.runs, *other.runs]) and [*map(len, known)] == [len(one.runs), len(other.runs)]
    paired = paired_bootstrap(*known) if is_paired else None
    return PairDifference(one.name, other.name, difference, low, high, paired, label)


def _resample(group: Group) -> Draws:
    """Of the runs that are compared and have predictions and a finite value; they may be of several test sets."""
    found: dict[bytes, dict[str, Terms]] = {}
    for run in (run for contender in group.chosen.values() for run in contender.runs):
        terms = terms_of(group.metric, run) if math.isfinite(group.value(run)) else None
        if terms is not None:
            found.setdefault(run.predictions.asked, {})[run.directory] = terms
    return {name: x for same in found.values() for name, x in zip(same, resample([*same.values()]), strict=True)}
