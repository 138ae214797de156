"""Tests the claims of a study with its runs.

Tested by tests/report/test_findings.py and, for error rates, tests/report/test_claim_error_rates.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

import numpy as np

from triptych.config import ConfigError, amount, counted, suggestion
from triptych.report.labels import COSTS
from triptych.report.page.charts import CLOCKS, draw_difficulty, draw_results, draw_validation
from triptych.report.page.examples import most_in_training
from triptych.report.page.style import Figure
from triptych.report.read_records import RecordedRun
from triptych.report.statistics.bootstrap import terms_of
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.metrics import own_metric, validation_key
from triptych.report.statistics.pair_test import PairTest, Sample, Scale
from triptych.report.statistics.raised_seeds import describe_raised_seeds
from triptych.report.statistics.reach import cost_to_reach
from triptych.report.statistics.significance import (
    CONFIDENCE,
    MIN_SEEDS,
    POWER,
    adjust_by_holm,
    pool_deviations,
    seeds_to_decide,
)
from triptych.report.statistics.verdicts import show_mean
from triptych.studies.study import Claim, Study, Tuning
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
        grain: the resolution of these values, of each variant.
        shown: their means in words.
        difference: first minus second, in words, with its interval.
        p: the p-value, with Holm's correction for all claims of the study.
        outcome: ``as predicted``, ``not as predicted`` or ``inconclusive``.
        reasons: why it is inconclusive.
        command: trains enough seeds to decide; empty if the claim is decided, or more seeds would not help.
        figure: a chart of it.
        raised: that its seeds were raised, in a sentence; empty if they were not.
    """

    claim: Claim
    what: str
    values: dict[str, list[float]]
    grain: dict[str, float]
    shown: dict[str, str]
    difference: str
    p: float
    outcome: str
    reasons: tuple[str, ...]
    command: str
    figure: Figure
    raised: str = ""

    @property
    def text(self) -> str:
        means = " vs. ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.shown.items())
        p = f"p = {self.p:.2g} (Holm)" if self.p >= 0.001 else "p < 0.001 (Holm)"
        why = f". Inconclusive: {'; '.join(self.reasons)}" if self.reasons else ""
        test = "" if self.claim.margin is None else f" for the test against the margin of {self.claim.margin:g}"
        return f"{self.what[0].upper()}{self.what[1:]}: {means}: {self.difference}, {p}{test}{why}.{self.raised}"


@dataclass(frozen=True)
class _Value:
    """The value of one seed.

    Attributes:
        seed: the seed.
        number: the score, or the cost of reaching one, up to the end that both variants have in common.
        trials: the number of runs of this seed, of which the best on the validation set counts.
        reached: whether the score was reached by that end.
        grain: the resolution of the number.
    """

    seed: int
    number: float
    trials: int
    reached: bool = True
    grain: float = 0.0


@dataclass(frozen=True)
class _Measured:
    """A claim before Holm's correction.

    Attributes:
        end: for a cost, the end that both variants have in common.
        test: of the two variants.
        reasons: why it cannot be decided.
    """

    claim: Claim
    group: Group
    values: dict[str, list[_Value]]
    end: float
    test: PairTest
    reasons: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, list[float]]:
        return {variant: [value.number for value in found] for variant, found in self.values.items()}

    @property
    def learned(self) -> dict[str, list[float]]:
        """The numbers of the runs that learned; all costs."""
        samples = {name: Sample(name, tuple(found), ()) for name, found in self.numbers.items()}
        scale = Scale(-1) if self.claim.target_score is not None else self.group.scale([*samples.values()])
        return {name: scale.learned(sample) for name, sample in samples.items()}

    @property
    def unreached(self) -> list[str]:
        """Variants with a seed that has not reached the score."""
        return [variant for variant, found in self.values.items() if not all(value.reached for value in found)]


def judge_claims(study: Study, runs: Sequence[RecordedRun], tunings: Mapping[str, Tuning]) -> list[Finding]:
    """Tests each claim on the seeds of its two variants; p-values are corrected for all claims (Holm 1979).

    Args:
        runs: each with its variant.
        tunings: of the variants that were tuned.
    """
    measured = [_measure(study, claim, runs, tunings) for claim in study.claims]
    adjusted = adjust_by_holm([one.test.p for one in measured])
    return [_judge(study, one, p) for one, p in zip(measured, adjusted, strict=True)]


def claimed_group(study: Study, claim: Claim | None, runs: Sequence[RecordedRun]) -> Group:
    """Some runs of a study, with the metric that a claim judges; without a claim, that of the task."""
    groups, names = group_runs(runs), ", ".join(dict.fromkeys(run.variant for run in runs))
    if len(groups) != 1:
        raise ConfigError(f"study {study.name}: {names}: expected runs of one task on one corpus")
    (group,) = groups
    if claim is not None and claim.score is not None:
        group = replace(group, metric=_score_named(study, claim.score, group))
    if group.scored_differently:
        raise ConfigError(f"study {study.name}: {names} are not comparable: {group.scored_differently}")
    return group


def _measure(study: Study, claim: Claim, runs: Sequence[RecordedRun], tunings: Mapping[str, Tuning]) -> _Measured:
    own = [run for run in runs if run.variant in claim.variants]
    group = claimed_group(study, claim, own)
    of_variants = {variant: [run for run in own if run.variant == variant] for variant in claim.variants}
    end = min((_spent(claim, run) for run in own), default=math.inf) if claim.target_score is not None else math.inf
    values = {variant: _values(claim, group, found, end) for variant, found in of_variants.items()}
    first, second = (
        Sample(
            variant.replace("_", " "),
            tuple(value.number for value in found),
            tuple(value.seed for value in found),
            max((value.grain for value in found), default=0.0),
            own_metric(group.metric, of_variants[variant][0]).is_bound,
        )
        for variant, found in values.items()
    )
    scale = Scale(-1) if claim.target_score is not None else group.scale([first, second])
    test = PairTest.of(first, second, scale, claim.margin)
    measured = _Measured(claim, group, values, end, test, test.reasons)
    return replace(measured, reasons=(*test.reasons, *_problems(measured, tunings)))


def _problems(one: _Measured, tunings: Mapping[str, Tuning]) -> list[str]:
    """Why a claim cannot be decided, apart from the reasons of its test."""
    problems = []
    trials = {variant: {value.trials for value in found} for variant, found in one.values.items()}
    trials |= {variant: {len(tunings[variant].trials)} for variant in trials if variant in tunings}
    if len(set().union(*trials.values())) > 1:
        numbers = [f"{' or '.join(map(str, sorted(found)))} of {name}" for name, found in trials.items()]
        problems.append(f"unequal numbers of configurations were tried: {' and '.join(numbers)}")
    for variant, lead in zip(one.claim.variants, (1, -1), strict=True):
        if one.claim.margin is not None or one.test.lead != lead:  # a winner may be at an edge
            name = variant.replace("_", " ")
            problems += (
                [edge.describe(name) for edge in tunings[variant].edges]
                if variant in tunings
                else one.group.edges([x for x in one.group.contenders if x.runs[0].variant == variant])
            )
    if one.claim.margin is not None and one.unreached:
        problems.append(f"{' and '.join(one.unreached)} did not always reach the score")
    if not any(value.reached for found in one.values.values() for value in found):
        problems.append("no run reached the score")
    return problems


def _score_named(study: Study, name: str, group: Group) -> MetricSpec:
    known = {score.name: score for score in group.runs[0].task_info.comparison_metrics}
    if name not in known:
        raise ConfigError(f"study {study.name}: score={name}: expected one of {', '.join(known)} for {group.task}")
    return known[name]


def name_measure(claim: Claim, group: Group) -> str:
    """What a claim compares, in words."""
    title = group.metric.title
    if claim.target_score is not None:
        return f"{COSTS[claim.cost_unit]} to {group.metric.show(claim.target_score)} {title} in validation"
    if claim.difficulty:
        return f"{title} at {', '.join(f'{key} {value}' for key, value in claim.difficulty.items())}"
    return title if claim.extrapolate is None else f"{title} beyond the training {claim.extrapolate}"


def _values(claim: Claim, group: Group, runs: Sequence[RecordedRun], end: float) -> list[_Value]:
    """One value per seed. If a seed has several runs, as in a ladder of sizes, the best on the validation set
    counts.

    Args:
        end: of costs.
    """
    by_seed = groupby(sorted(runs, key=lambda run: run.seed), key=lambda run: run.seed)
    return [_value(claim, group, list(found), end) for _, found in by_seed]


def _best(group: Group, runs: Sequence[RecordedRun]) -> RecordedRun:
    def quality(run: RecordedRun) -> float:
        value = run.metrics.get(validation_key(group.metric, run), math.nan)
        return -math.inf if math.isnan(value) else value if group.metric.higher_is_better else -value

    return max(runs, key=quality)


def _value(claim: Claim, group: Group, runs: Sequence[RecordedRun], end: float) -> _Value:
    run = _best(group, runs)
    value = _Value(run.seed, group.value(run), len(runs))
    if claim.target_score is not None:
        return _cost(claim, group, run, claim.target_score, end, value)
    grain = 1 / len(run.predictions) if run.predictions and group.metric.unit == "%" else 0.0
    keys = [*claim.difficulty] if claim.extrapolate is None else [claim.extrapolate]
    if not keys:
        return replace(value, grain=grain)
    sizes = {x: np.array([y.get("difficulty", {}).get(x, math.nan) for y in run.predictions]) for x in keys}
    if claim.extrapolate is None:
        is_counted = np.all([sizes[key] == size for key, size in claim.difficulty.items()], axis=0)
        expected = f"to have the difficulty {dict(claim.difficulty)}"
    else:
        is_counted = sizes[claim.extrapolate] > most_in_training(group, claim.extrapolate)
        expected = f"to be beyond the training {claim.extrapolate}"
    if (terms := terms_of(group.metric, run)) is None or not is_counted.any():
        known = list(run.train_difficulty_range or {})
        hint = next((suggestion(key, known) for key in keys if key not in known), "")
        raise ConfigError(f"{run.directory}: no test example is known {expected}{hint}")
    return replace(value, number=terms.value(terms.terms[is_counted].sum(0)), grain=1 / int(is_counted.sum()))


def _spent(claim: Claim, run: RecordedRun) -> float:
    return float({"steps": run.steps, "train_flops": run.train_flops, "elapsed_s": run.wall_time_s}[claim.cost_unit])


def _cost(claim: Claim, group: Group, run: RecordedRun, target: float, end: float, value: _Value) -> _Value:
    """The cost up to the first validation at the target, or to the end: a restricted mean compares such costs."""
    if claim.cost_unit == "train_flops" and not group.counts_alike:
        raise ConfigError(
            f"{run.directory}: only some runs of this study count the FLOPs of the optimizer; train the others again"
        )
    try:
        found = cost_to_reach(group, run, target, claim.cost_unit)
        steps = run.curves[validation_key(group.metric, run)].steps
        validations = len({min(step + 1, run.steps) for step in steps})
    except KeyError as error:
        raise ConfigError(f"{run.directory}/metrics.csv has no column {error}, which a claim needs") from None
    reached = found is not None and found <= end
    grain = _spent(claim, run) / validations
    return replace(value, number=found if found is not None and reached else end, reached=reached, grain=grain)


def _judge(study: Study, one: _Measured, p: float) -> Finding:
    claim, test = one.claim, one.test
    is_so = test.lead == 1 if claim.margin is None else test.is_within(claim.margin)
    is_sure = p < 1 - CONFIDENCE and (claim.margin is not None or test.lead != 0)
    reasons = list(one.reasons)
    if not reasons and not is_sure:
        doubt = "p is not below 5 % after Holm's correction" if test.p < 1 - CONFIDENCE else ""
        if claim.margin is not None:
            reasons.append(doubt or "the difference may be on either side of the margin")
        else:
            reasons.append(doubt if test.winner else test.doubt)
    outcome = INCONCLUSIVE if reasons else AS_PREDICTED if is_so else OPPOSITE
    what, figure = name_measure(claim, one.group), _draw(claim, one.group)
    command = _command(study, one) if reasons else ""
    difference = _difference(one)
    least = claim.min_difference
    if not reasons and least is not None and test.is_within(least):
        difference += f", better by less than matters ({least:g})"
    grain = {variant: max((value.grain for value in found), default=0.0) for variant, found in one.values.items()}
    raised = describe_raised_seeds([[x for x in one.group.runs if x.variant == variant] for variant in claim.variants])
    told = _show(one), difference, p, outcome, tuple(reasons), command, figure, raised
    return Finding(claim, what, one.numbers, grain, *told)


def _command(study: Study, one: _Measured) -> str:
    """Trains as many seeds as would probably decide the claim; empty if more seeds are no help."""
    if not one.test.more_seeds_help or len(one.reasons) > len(one.test.reasons):
        return ""
    tried, seeds = max(map(len, one.values.values())), 0
    if one.test.welch is not None:
        margin, apart = one.claim.margin, abs(one.test.welch.difference)
        distance, power = (apart, POWER) if margin is None else (abs(margin - apart), POWER_OF_ALIKE)
        deviation = pool_deviations(*one.learned.values())
        seeds = seeds_to_decide(distance, deviation, (1 - CONFIDENCE) / len(study.claims), power) or 0
    elif tried < MIN_SEEDS:
        seeds = MIN_SEEDS
    return study.command([f"seed=range(1,{max(seeds, tried + 1) + 1})"]) if seeds else ""


def _show(one: _Measured) -> dict[str, str]:
    """The mean of each variant, over the runs that learned."""
    if one.claim.target_score is not None:
        return {name: _show_cost(found, one.end) for name, found in one.values.items()}
    runs = {run.variant: run for run in one.group.runs}
    metrics = {name: own_metric(one.group.metric, run) for name, run in runs.items()}
    return {name: show_mean(metrics[name], [x], len(one.numbers[name])) for name, x in one.learned.items()}


def _show_cost(found: Sequence[_Value], end: float) -> str:
    """The mean cost up to an end; with the number of runs that reached the score, if not all did."""
    mean, reached = amount(fmean(value.number for value in found)), sum(value.reached for value in found)
    if reached == len(found):
        return f"{mean} ({counted(reached, 'seed')})"
    runs = f"{reached} of {counted(len(found), 'run')} reached it"
    return f"{mean} up to {amount(end)} ({runs})" if reached else f"not reached within {amount(end)} ({runs})"


def _difference(one: _Measured) -> str:
    """First minus second, and its 95 % interval; the shares of runs that learned, if they differ."""

    def show(*values: float) -> str:
        if one.claim.target_score is not None:
            return " to ".join(f"{'-' if value < 0 else ''}{amount(abs(value))}" for value in values)
        return one.group.metric.show_difference(*values)

    said, test = [], one.test
    first, second = (
        f"{learned} of {len(found)}" for learned, found in zip(test.learned, one.values.values(), strict=True)
    )
    if first != second:
        said.append(f"{first} runs learned against {second}")
    if test.welch is not None:
        sign = -1 if test.welch.difference < 0 else 1
        low, high = sorted(sign * end for end in test.welch.interval)
        interval = f"95 % interval {show(low, high)}" if math.isfinite(low) else "no spread over seeds, so no test"
        said.append(f"{show(abs(test.welch.difference))} {'lower' if sign < 0 else 'higher'} ({interval})")
    return ", ".join(said) or "not tested"


def _draw(claim: Claim, group: Group) -> Figure:
    if claim.target_score is not None and (figures := draw_validation(group)):
        return figures.get(CLOCKS[claim.cost_unit][0], next(iter(figures.values())))
    measure = claim.extrapolate or next(reversed(claim.difficulty), None)
    if measure is not None and (figures := draw_difficulty(group)):
        return figures.get(measure, next(iter(figures.values())))
    return draw_results(group)
