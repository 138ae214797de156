"""What the runs of a study say to its claims."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

import numpy as np

from triptych.config import ConfigError, amount, suggestion
from triptych.report.page.charts import CLOCKS, draw_difficulty, draw_results, draw_validation
from triptych.report.page.examples import most_in_training
from triptych.report.page.style import Figure
from triptych.report.read_records import Run
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
from triptych.report.wording import COSTS
from triptych.studies.study import Claim, Study
from triptych.tasks.scores import Score

POWER_OF_ALIKE = 0.9
"""Of each of two one-sided tests, both of which have to hold."""
AS_PREDICTED, OPPOSITE, UNDECIDED = "as predicted", "not as predicted", "not decided"


@dataclass(frozen=True)
class Finding:
    """What the runs say to a claim.

    Attributes:
        claim: that it is about.
        what: is compared, such as ``exact match beyond the length of the training``.
        values: of each arm, one a seed.
        shown: their means in words.
        difference: first less second, in words, with its interval.
        p: the p-value, corrected by Holm for all claims of the study.
        outcome: ``as predicted``, ``not as predicted`` or ``not decided``.
        command: what would decide it; empty where it is decided, or more seeds would not.
        figure: a picture of it.
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
        """In a sentence."""
        means = " against ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.shown.items())
        seeds = " and ".join(dict.fromkeys(str(len(found)) for found in self.values.values()))
        p = f"p = {self.p:.2g}" if self.p >= 0.001 else "p < 0.001"
        test = "" if self.claim.within is None else f" of the test against {self.claim.within:g}"
        return f"{self.what[0].upper()}{self.what[1:]}: {means} (means of {seeds} seeds): {self.difference}, {p}{test}."


@dataclass(frozen=True)
class _Value:
    """Of a seed.

    Attributes:
        number: of the score, or what it cost to reach one.
        reached: whether it did; if not, the number is all that it had spent.
        grain: the steps that the number is counted in.
    """

    number: float
    reached: bool = True
    grain: float = 0.0


@dataclass(frozen=True)
class _Measured:
    """A claim before the correction."""

    claim: Claim
    group: Group
    values: dict[str, list[_Value]]

    @property
    def numbers(self) -> dict[str, list[float]]:
        return {arm: [value.number for value in found] for arm, found in self.values.items()}

    @property
    def welch(self) -> Welch:
        first, second = self.numbers.values()
        return Welch.of(first, second, *(max(value.grain for value in found) for found in self.values.values()))

    @property
    def is_better(self) -> bool:
        """Whether the first arm has the better mean."""
        higher = self.group.metric.higher_is_better and self.claim.until is None
        return (self.welch.difference > 0) == higher

    @property
    def unreached(self) -> list[str]:
        """Arms of which some seed has not reached the score."""
        return [arm for arm, found in self.values.items() if not all(value.reached for value in found)]

    @property
    def p(self) -> float:
        margin = self.claim.within
        return (
            self.welch.p
            if margin is None
            else min(2 * min(self.welch.p_within(margin), self.welch.p_beyond(margin)), 1)
        )


def find(study: Study, runs: Sequence[Run]) -> list[Finding]:
    """Judges each claim by the seeds of its two arms; p-values are corrected for all claims (Holm 1979).

    Args:
        runs: each with its arm.
    """
    measured = [_measure(study, claim, runs) for claim in study.claims]
    adjusted = adjust_by_holm([one.p for one in measured])
    return [_judge(study, one, p) for one, p in zip(measured, adjusted, strict=True)]


def _measure(study: Study, claim: Claim, runs: Sequence[Run]) -> _Measured:
    own = [run for run in runs if run.arm in claim.arms]
    groups = group_runs(own)
    if len(groups) != 1:
        raise ConfigError(f"study {study.name}: {', '.join(claim.arms)}: expected runs of one task on one corpus")
    (group,) = groups
    if claim.score is not None:
        group = replace(group, metric=_score_named(study, claim.score, group))
    if group.scored_differently:
        raise ConfigError(f"study {study.name}: {', '.join(claim.arms)} are not comparable: {group.scored_differently}")
    values = {arm: _values(claim, group, [run for run in own if run.arm == arm]) for arm in claim.arms}
    for arm, found in values.items():
        if len(found) < 2:
            raise ConfigError(f"study {study.name}, arm {arm}: {len(found)} seeds; expected two at least")
        if not all(math.isfinite(value.number) for value in found):
            raise ConfigError(f"study {study.name}, arm {arm}: a run has no finite {group.metric.title}")
    return _Measured(claim, group, values)


def _score_named(study: Study, name: str, group: Group) -> Score:
    for score in group.runs[0].task_facts.scores:
        if score.name == name:
            return score
    known = ", ".join(score.name for score in group.runs[0].task_facts.scores)
    raise ConfigError(f"study {study.name}: score={name}: the runs of {group.task} have {known}")


def _what(claim: Claim, group: Group) -> str:
    title = group.metric.title
    if claim.until is not None:
        return f"{COSTS[claim.cost]} to {group.metric.show(claim.until)} {title} in validation"
    return title if claim.beyond is None else f"{title} beyond the {claim.beyond} of the training"


def _values(claim: Claim, group: Group, runs: Sequence[Run]) -> list[_Value]:
    """One value a seed: of several runs of a seed, as in a ladder of sizes, that of the best on the validation set."""
    by_seed = groupby(sorted(runs, key=lambda run: run.seed), key=lambda run: run.seed)
    return [_value(claim, group, _best(group, list(found))) for _, found in by_seed]


def _best(group: Group, runs: Sequence[Run]) -> Run:
    def quality(run: Run) -> float:
        value = run.metrics.get(validation_key(group.metric, run), math.nan)
        return -math.inf if math.isnan(value) else value if group.metric.higher_is_better else -value

    return max(runs, key=quality)


def _value(claim: Claim, group: Group, run: Run) -> _Value:
    if claim.until is not None:
        return _cost(claim, group, run, claim.until)
    grain = 1 / len(run.answers) if run.answers and group.metric.unit == "%" else 0.0
    if claim.beyond is None:
        return _Value(group.value(run), grain=grain)
    terms, most = terms_of(group.metric, run), most_in_training(group, claim.beyond)
    sizes = np.array([answer.get("difficulty", {}).get(claim.beyond, math.nan) for answer in run.answers])
    if terms is None or not (is_beyond := sizes > most).any():
        known = list(run.training_range or {})
        hint = suggestion(claim.beyond, known)
        raise ConfigError(
            f"{run.directory}: no test example is known to be beyond the {claim.beyond} of the training{hint}"
        )
    return _Value(terms.value(terms.terms[is_beyond].sum(0)), grain=1 / int(is_beyond.sum()))


def _cost(claim: Claim, group: Group, run: Run, target: float) -> _Value:
    if claim.cost == "train_flops" and not group.counts_alike:
        raise ConfigError(
            f"{run.directory}: some runs of this study count the operations of the optimizer and some do not; train "
            "the others again"
        )
    spent = {"updates": run.updates, "train_flops": run.train_flops, "time_s": run.wall_time_s}[claim.cost]
    try:
        found = cost_to_reach(group, run, target, claim.cost)
        validations = len(run.curves[validation_key(group.metric, run)].steps)
    except KeyError as error:
        raise ConfigError(f"{run.directory}/metrics.csv has no {error}, which a claim needs") from None
    return _Value(spent if found is None else found, found is not None, spent / validations)


def _judge(study: Study, one: _Measured, p: float) -> Finding:
    claim, welch = one.claim, one.welch
    is_sure = p < 1 - CONFIDENCE
    first, second = claim.arms
    if claim.within is not None:
        is_known, is_so = not one.unreached, abs(welch.difference) < claim.within
        distance, power = abs(claim.within - abs(welch.difference)), POWER_OF_ALIKE
    else:
        # what was not reached would have cost more: that is known of the worse arm alone
        is_known, is_so = (first if one.is_better else second) not in one.unreached, one.is_better
        distance, power = abs(welch.difference), POWER
    outcome = UNDECIDED if not (is_sure and is_known) else AS_PREDICTED if is_so else OPPOSITE
    command = ""
    if outcome == UNDECIDED and is_known:
        deviation = pool_deviations(*one.numbers.values())
        seeds = seeds_to_decide(distance, deviation, (1 - CONFIDENCE) / len(study.claims), power)
        tried = min(map(len, one.values.values()))
        command = study.command([f"seed=range(1,{max(seeds, tried + 1) + 1})"]) if seeds else ""
    show = amount if claim.until is not None else one.group.metric.show
    shown = {
        arm: ("at least " if arm in one.unreached else "") + show(fmean(found)) for arm, found in one.numbers.items()
    }
    what, figure = _what(claim, one.group), _draw(claim, one.group)
    return Finding(claim, what, one.numbers, shown, _difference(one), p, outcome, command, figure)


def _difference(one: _Measured) -> str:
    """First less second, and its 95 % interval."""

    def show(*values: float) -> str:
        if one.claim.until is not None:
            return " to ".join(f"{'-' if value < 0 else ''}{amount(abs(value))}" for value in values)
        return one.group.metric.show_difference(*values)

    sign = -1 if one.welch.difference < 0 else 1
    low, high = sorted(sign * end for end in one.welch.interval)
    interval = f"95 % interval {show(low, high)}" if math.isfinite(low) else "no spread over seeds, and so no test"
    return f"{show(abs(one.welch.difference))} {'less' if sign < 0 else 'more'} ({interval})"


def _draw(claim: Claim, group: Group) -> Figure:
    if claim.until is not None and (figures := draw_validation(group)):
        return figures.get(CLOCKS[claim.cost][0], next(iter(figures.values())))
    if claim.beyond is not None and (figures := draw_difficulty(group)):
        return figures.get(claim.beyond, next(iter(figures.values())))
    return draw_results(group)
