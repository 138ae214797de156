"""What the runs of a study say to its claims."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, stdev

import numpy as np

from triptych.config import ConfigError, amount
from triptych.report.page.charts import Figure, draw_difficulty, draw_results, draw_validation
from triptych.report.page.examples import most_in_training
from triptych.report.read_records import Run
from triptych.report.statistics.bootstrap import terms_of
from triptych.report.statistics.metrics import metric_key
from triptych.report.statistics.reach import cost_to_reach
from triptych.report.statistics.significance import CONFIDENCE, Welch, adjust_by_holm, seeds_to_decide
from triptych.report.statistics.verdicts import Group, group_runs
from triptych.report.wording import COSTS
from triptych.studies.study import Claim, Study
from triptych.tasks.scores import Score

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
        p: that it is chance, corrected by Holm for all claims of the study.
        outcome: ``as predicted``, ``not as predicted`` or ``not decided``.
        command: what would decide it; empty where it is decided, or 100 seeds would not.
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
        seeds = min(map(len, self.values.values()))
        p = f"= {self.p:.2g}" if self.p >= 0.001 else "< 0.001"
        return f"{self.what[0].upper()}{self.what[1:]}: {means} (means of {seeds} seeds): {self.difference}, p {p}."


@dataclass(frozen=True)
class _Measured:
    """A claim before the correction."""

    claim: Claim
    group: Group
    what: str
    values: dict[str, list[float]]
    welch: Welch
    sign: int
    unreached: tuple[str, ...]

    @property
    def p(self) -> float:
        return self.welch.p if self.claim.within is None else self.welch.p_outside(self.claim.within)


def find(study: Study, runs: Sequence[Run]) -> list[Finding]:
    """Judges each claim by the seeds of its two arms; p-values are corrected for all claims (Holm 1979).

    Args:
        runs: each with its arm.

    Raises:
        ConfigError: an arm has no two seeds, or its runs have no such score.
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
    values = {arm: _values(claim, group, [run for run in own if run.arm == arm]) for arm in claim.arms}
    if least := [arm for arm, found in values.items() if len(found) < 2]:
        raise ConfigError(f"study {study.name}, arm {least[0]}: {len(values[least[0]])} seeds; expected two at least")
    unreached = tuple(arm for arm, found in values.items() if any(value < 0 for value in found))
    values = {arm: [abs(value) for value in found] for arm, found in values.items()}
    higher = group.metric.higher_is_better and claim.until is None
    first, second = values.values()
    return _Measured(claim, group, _what(claim, group), values, Welch.of(first, second), 1 if higher else -1, unreached)


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


def _values(claim: Claim, group: Group, runs: Sequence[Run]) -> list[float]:
    """One value a seed: of several runs of a seed, as in a ladder of sizes, that of the best on the validation set."""
    by_seed = groupby(sorted(runs, key=lambda run: run.seed), key=lambda run: run.seed)
    return [_value(claim, group, _best(group, list(found))) for _, found in by_seed]


def _best(group: Group, runs: Sequence[Run]) -> Run:
    key = metric_key(group.metric, runs[0]).replace("test/", "val/", 1)
    sign = 1 if group.metric.higher_is_better else -1
    return max(runs, key=lambda run: sign * run.metrics.get(key, math.nan)) if len(runs) > 1 else runs[0]


def _value(claim: Claim, group: Group, run: Run) -> float:
    """Negative: the score was not reached until then."""
    if claim.until is not None:
        return _cost(claim, group, run)
    if claim.beyond is None:
        return group.value(run)
    terms, most = terms_of(group.metric, run), most_in_training(group, claim.beyond)
    sizes = np.array([answer.get("difficulty", {}).get(claim.beyond, math.nan) for answer in run.answers])
    if terms is None or not (sizes > most).any():
        raise ConfigError(f"{run.directory}: no test example is known to be beyond the {claim.beyond} of the training")
    return terms.value(terms.terms[sizes > most].sum(0))


def _cost(claim: Claim, group: Group, run: Run) -> float:
    assert claim.until is not None
    spent = {"updates": run.updates, "train_flops": run.train_flops, "time_s": run.wall_time_s}
    try:
        found = cost_to_reach(group, run, claim.until, claim.cost)
    except KeyError as error:
        raise ConfigError(f"{run.directory}/metrics.csv: no {error}, which a claim needs") from None
    return -spent[claim.cost] if found is None else found


def _judge(study: Study, one: _Measured, p: float) -> Finding:
    claim, welch = one.claim, one.welch
    is_sure = p < 1 - CONFIDENCE
    first, second = claim.arms
    if claim.within is not None:
        low, high = welch.interval
        differ = abs(welch.difference) > claim.within and (low > 0 or high < 0)
        outcome = AS_PREDICTED if is_sure else OPPOSITE if differ else UNDECIDED
        distance = claim.within - abs(welch.difference)
    else:
        is_better = one.sign * welch.difference > 0
        known = first not in one.unreached if is_better else second not in one.unreached  # what was not reached is more
        outcome = UNDECIDED if not (is_sure and known) else AS_PREDICTED if is_better else OPPOSITE
        distance = abs(welch.difference)
    deviation = math.sqrt(fmean(stdev(found) ** 2 for found in one.values.values()))
    seeds = seeds_to_decide(distance, deviation) if outcome == UNDECIDED else None
    tried = min(map(len, one.values.values()))
    command = f"triptych study {study.name} 'seed=range(1,{max(seeds, tried + 1) + 1})'" if seeds else ""
    show = amount if claim.until is not None else one.group.metric.show
    shown = {
        arm: ("at least " if arm in one.unreached else "") + show(fmean(found)) for arm, found in one.values.items()
    }
    return Finding(claim, one.what, one.values, shown, _difference(one), p, outcome, command, _draw(claim, one.group))


def _difference(one: _Measured) -> str:
    """First less second, and its 95 % interval."""

    def show(*values: float) -> str:
        if one.claim.until is not None:
            return " to ".join(f"{'-' if value < 0 else ''}{amount(abs(value))}" for value in values)
        return one.group.metric.show_difference(*values)

    sign = -1 if one.welch.difference < 0 else 1
    low, high = sorted(sign * end for end in one.welch.interval)
    interval = f"95 % interval {show(low, high)}" if math.isfinite(low) else "the same in every seed"
    return f"{show(abs(one.welch.difference))} {'less' if sign < 0 else 'more'} ({interval})"


def _draw(claim: Claim, group: Group) -> Figure:
    if claim.until is not None and (figures := draw_validation(group)):
        clock = {"updates": "updates", "train_flops": "operations", "time_s": "time"}[claim.cost]
        return figures.get(clock, next(iter(figures.values())))
    if claim.beyond is not None and (figures := draw_difficulty(group)):
        return figures.get(claim.beyond, next(iter(figures.values())))
    return draw_results(group)
