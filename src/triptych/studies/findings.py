"""Tests the claims of a study with its runs.

Tested by tests/report/test_findings.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

import numpy as np

from triptych.config import ConfigError, amount, suggestion
from triptych.report.labels import COSTS
from triptych.report.page.charts import CLOCKS, draw_difficulty, draw_results, draw_validation
from triptych.report.page.examples import most_in_training
from triptych.report.page.style import Figure
from triptych.report.read_records import RecordedRun
from triptych.report.statistics.bootstrap import terms_of
from triptych.report.statistics.metrics import validation_key
from triptych.report.statistics.reach import cost_to_reach
from triptych.report.statistics.significance import (
    CONFIDENCE,
    POWER,
    Welch,
    adjust_by_holm,
    pool_deviations,
    seeds_to_decide,
)
from triptych.report.statistics.verdicts import Group, group_runs
from triptych.studies.study import Claim, Study
from triptych.tasks.metric_specs import MetricSpec

POWER_OF_ALIKE = 0.9
"""Of each of two one-sided tests, both of which have to hold."""
AS_PREDICTED, OPPOSITE, INCONCLUSIVE = "as predicted", "not as predicted", "inconclusive"


@dataclass(frozen=True)
class Finding:
    """The result of a claim.

    Attributes:
        claim: the claim.
        what: the compared quantity, such as ``exact match beyond the training length``.
        values: of each variant, one per seed.
        shown: their means in words.
        difference: first minus second, in words, with its interval.
        p: the p-value, with Holm's correction for all claims of the study.
        outcome: ``as predicted``, ``not as predicted`` or ``inconclusive``.
        command: trains enough seeds to decide; empty if the claim is decided, or more seeds would not help.
        figure: a chart of it.
    """

    claim: Claim
    what: str
    values: dict[str, list[float]]
    shown: dict[str, str]
    difference: str
    p: float
    outcome: str
    command: str
    figure: Figure

    @property
    def text(self) -> str:
        means = " vs. ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.shown.items())
        seeds = " and ".join(dict.fromkeys(str(len(found)) for found in self.values.values()))
        p = f"p = {self.p:.2g}" if self.p >= 0.001 else "p < 0.001"
        test = "" if self.claim.margin is None else f" for the test against the margin of {self.claim.margin:g}"
        return f"{self.what[0].upper()}{self.what[1:]}: {means} (means of {seeds} seeds): {self.difference}, {p}{test}."


@dataclass(frozen=True)
class _Value:
    """The value of one seed.

    Attributes:
        number: the score, or the cost of reaching one.
        reached: whether the score was reached; if not, the number is the total cost.
        grain: the resolution of the number.
    """

    number: float
    reached: bool = True
    grain: float = 0.0


@dataclass(frozen=True)
class _Measured:
    """A claim before Holm's correction."""

    claim: Claim
    group: Group
    values: dict[str, list[_Value]]

    @property
    def numbers(self) -> dict[str, list[float]]:
        return {variant: [value.number for value in found] for variant, found in self.values.items()}

    @property
    def welch(self) -> Welch:
        first, second = self.numbers.values()
        return Welch.of(first, second, *(max(value.grain for value in found) for found in self.values.values()))

    @property
    def is_better(self) -> bool:
        """Whether the first variant has the better mean."""
        higher = self.group.metric.higher_is_better and self.claim.target_score is None
        return (self.welch.difference > 0) == higher

    @property
    def unreached(self) -> list[str]:
        """Variants with a seed that has not reached the score."""
        return [variant for variant, found in self.values.items() if not all(value.reached for value in found)]

    @property
    def p(self) -> float:
        margin = self.claim.margin
        if margin is None:
            return self.welch.p
        return min(2 * min(self.welch.p_within(margin), self.welch.p_beyond(margin)), 1)


def judge_claims(study: Study, runs: Sequence[RecordedRun]) -> list[Finding]:
    """Tests each claim on the seeds of its two variants; p-values are corrected for all claims (Holm 1979).

    Args:
        runs: each with its variant.
    """
    measured = [_measure(study, claim, runs) for claim in study.claims]
    adjusted = adjust_by_holm([one.p for one in measured])
    return [_judge(study, one, p) for one, p in zip(measured, adjusted, strict=True)]


def _measure(study: Study, claim: Claim, runs: Sequence[RecordedRun]) -> _Measured:
    own = [run for run in runs if run.variant in claim.variants]
    groups, names = group_runs(own), ", ".join(claim.variants)
    if len(groups) != 1:
        raise ConfigError(f"study {study.name}: {names}: expected runs of one task on one corpus")
    (group,) = groups
    if claim.score is not None:
        group = replace(group, metric=_score_named(study, claim.score, group))
    if group.scored_differently:
        raise ConfigError(f"study {study.name}: {names} are not comparable: {group.scored_differently}")
    values = {
        variant: _values(claim, group, [run for run in own if run.variant == variant]) for variant in claim.variants
    }
    for variant, found in values.items():
        if len(found) < 2:
            raise ConfigError(f"study {study.name}, variant {variant}: {len(found)} seeds; expected at least two")
        if not all(math.isfinite(value.number) for value in found):
            raise ConfigError(f"study {study.name}, variant {variant}: a run has no finite {group.metric.title}")
    return _Measured(claim, group, values)


def _score_named(study: Study, name: str, group: Group) -> MetricSpec:
    known = {score.name: score for score in group.runs[0].task_info.comparison_metrics}
    if name not in known:
        raise ConfigError(f"study {study.name}: score={name}: expected one of {', '.join(known)} for {group.task}")
    return known[name]


def _what(claim: Claim, group: Group) -> str:
    title = group.metric.title
    if claim.target_score is not None:
        return f"{COSTS[claim.cost_unit]} to {group.metric.show(claim.target_score)} {title} in validation"
    return title if claim.extrapolate is None else f"{title} beyond the training {claim.extrapolate}"


def _values(claim: Claim, group: Group, runs: Sequence[RecordedRun]) -> list[_Value]:
    """One value per seed. If a seed has several runs, as in a ladder of sizes, the best on the validation set
    counts."""
    by_seed = groupby(sorted(runs, key=lambda run: run.seed), key=lambda run: run.seed)
    return [_value(claim, group, _best(group, list(found))) for _, found in by_seed]


def _best(group: Group, runs: Sequence[RecordedRun]) -> RecordedRun:
    def quality(run: RecordedRun) -> float:
        value = run.metrics.get(validation_key(group.metric, run), math.nan)
        return -math.inf if math.isnan(value) else value if group.metric.higher_is_better else -value

    return max(runs, key=quality)


def _value(claim: Claim, group: Group, run: RecordedRun) -> _Value:
    if claim.target_score is not None:
        return _cost(claim, group, run, claim.target_score)
    grain = 1 / len(run.predictions) if run.predictions and group.metric.unit == "%" else 0.0
    if claim.extrapolate is None:
        return _Value(group.value(run), grain=grain)
    terms, most = terms_of(group.metric, run), most_in_training(group, claim.extrapolate)
    sizes = np.array([answer.get("difficulty", {}).get(claim.extrapolate, math.nan) for answer in run.predictions])
    if terms is None or not (is_beyond := sizes > most).any():
        known = list(run.train_difficulty_range or {})
        hint = suggestion(claim.extrapolate, known)
        raise ConfigError(
            f"{run.directory}: no test example is known to be beyond the training {claim.extrapolate}{hint}"
        )
    return _Value(terms.value(terms.terms[is_beyond].sum(0)), grain=1 / int(is_beyond.sum()))


def _cost(claim: Claim, group: Group, run: RecordedRun, target: float) -> _Value:
    if claim.cost_unit == "train_flops" and not group.counts_alike:
        raise ConfigError(
            f"{run.directory}: only some runs of this study count the FLOPs of the optimizer; train the others again"
        )
    spent = {"steps": run.steps, "train_flops": run.train_flops, "elapsed_s": run.wall_time_s}[claim.cost_unit]
    try:
        found = cost_to_reach(group, run, target, claim.cost_unit)
        validations = len(run.curves[validation_key(group.metric, run)].steps)
    except KeyError as error:
        raise ConfigError(f"{run.directory}/metrics.csv has no column {error}, which a claim needs") from None
    return _Value(spent if found is None else found, found is not None, spent / validations)


def _judge(study: Study, one: _Measured, p: float) -> Finding:
    claim, welch = one.claim, one.welch
    is_sure = p < 1 - CONFIDENCE
    first, second = claim.variants
    if claim.margin is not None:
        is_known, is_so = not one.unreached, abs(welch.difference) < claim.margin
        distance, power = abs(claim.margin - abs(welch.difference)), POWER_OF_ALIKE
    else:
        # An unreached score would cost more, so the result also holds if only the worse variant has not reached it.
        is_known, is_so = (first if one.is_better else second) not in one.unreached, one.is_better
        distance, power = abs(welch.difference), POWER
    outcome = INCONCLUSIVE if not (is_sure and is_known) else AS_PREDICTED if is_so else OPPOSITE
    command = ""
    if outcome == INCONCLUSIVE and is_known:
        deviation = pool_deviations(*one.numbers.values())
        seeds = seeds_to_decide(distance, deviation, (1 - CONFIDENCE) / len(study.claims), power)
        tried = min(map(len, one.values.values()))
        command = study.command([f"seed=range(1,{max(seeds, tried + 1) + 1})"]) if seeds else ""
    show = amount if claim.target_score is not None else one.group.metric.show
    shown = {
        variant: ("at least " if variant in one.unreached else "") + show(fmean(found))
        for variant, found in one.numbers.items()
    }
    what, figure = _what(claim, one.group), _draw(claim, one.group)
    return Finding(claim, what, one.numbers, shown, _difference(one), p, outcome, command, figure)


def _difference(one: _Measured) -> str:
    """First minus second, and its 95 % interval."""

    def show(*values: float) -> str:
        if one.claim.target_score is not None:
            return " to ".join(f"{'-' if value < 0 else ''}{amount(abs(value))}" for value in values)
        return one.group.metric.show_difference(*values)

    sign = -1 if one.welch.difference < 0 else 1
    low, high = sorted(sign * end for end in one.welch.interval)
    interval = f"95 % interval {show(low, high)}" if math.isfinite(low) else "no spread over seeds, so no test"
    return f"{show(abs(one.welch.difference))} {'lower' if sign < 0 else 'higher'} ({interval})"


def _draw(claim: Claim, group: Group) -> Figure:
    if claim.target_score is not None and (figures := draw_validation(group)):
        return figures.get(CLOCKS[claim.cost_unit][0], next(iter(figures.values())))
    if claim.extrapolate is not None and (figures := draw_difficulty(group)):
        return figures.get(claim.extrapolate, next(iter(figures.values())))
    return draw_results(group)
