"""What a comparison shows, and what makes it doubtful: verdicts over seeds, and the audit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, variance
from typing import Any

from scipy.stats import t as student_t  # type: ignore[import-untyped]

from triptych.report.metrics import CONTINUATION, Metric, metric_key, primary_metric
from triptych.report.records import ARCHITECTURES, Run

CONFIDENCE = 0.95
TOLERANCE = 0.02
"""Params, FLOPs and tokens per update that are closer than this share count as equal in the audit."""


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one task on the same data, in the order of ``ARCHITECTURES``, and the metric that compares them."""

    task: str
    data: str
    metric: Metric
    runs: tuple[Run, ...]

    def value(self, run: Run) -> float:
        """The run's value of the metric; NaN where it has no finite one."""
        return run.metrics[metric_key(self.metric, run)]

    def optimum(self, run: Run) -> float | None:
        """The best value that was reachable for the run, where it is known."""
        return run.optimum.get(metric_key(self.metric, run))

    def by_architecture(self) -> dict[str, list[Run]]:
        """The runs of each architecture that is there."""
        return {name: list(runs) for name, runs in groupby(self.runs, key=lambda run: run.architecture)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one group: the winner is an architecture, or ``None`` where the runs cannot tell."""

    task: str
    data: str
    metric: str
    winner: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing, besides the architecture, that differs between the runs of a group."""

    task: str
    field: str
    values: dict[str, Any]
    text: str


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs of the same task and data together.

    Args:
        runs: the runs, sorted by task, data and architecture, as ``find_runs`` gives them.

    Returns:
        one group for each task and data.

    Raises:
        ValueError: a run lacks the metric that its group is compared by.
    """
    groups = groupby(runs, key=lambda run: (run.task, run.data))
    members = [(task, data, tuple(found)) for (task, data), found in groups]
    return [Group(task, data, primary_metric(found), found) for task, data, found in members]


def welch_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of ``mean(first) - mean(second)`` by Welch's t, variances not assumed equal.

    Args:
        first: one value a seed, two at least.
        second: likewise.

    Returns:
        the lower and the upper end; NaN where neither side has any spread.
    """
    a, b = variance(first) / len(first), variance(second) / len(second)
    if a + b == 0:
        return math.nan, math.nan
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    half = float(student_t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(a + b)
    difference = fmean(first) - fmean(second)
    return difference - half, difference + half


def judge(group: Group) -> Verdict:
    """Name the architecture that is better than each other one, if the seeds show it.

    A winner needs two seeds of each architecture and, against every other architecture, a Welch interval that
    excludes zero. As all of these must hold at once, the chance of a false winner stays at most 5 %.

    Args:
        group: the runs.

    Returns:
        the verdict.
    """
    winner, text = _judge(group)
    if group.metric is CONTINUATION:
        text += (
            " Scored on the same bytes, those of the continuation: test/bits_per_byte of full,"
            " test/continuation_bits_per_byte of the others."
        )
    return Verdict(group.task, group.data, group.metric.key, winner, text)


def _judge(group: Group) -> tuple[str | None, str]:
    metric = group.metric
    runs = group.by_architecture()
    values = {name: [group.value(run) for run in found] for name, found in runs.items()}
    if len(runs) == 1:
        return None, f"Only {_name(group.runs[0])} has been run: nothing to compare it with."
    if group.task == "denoising":
        return None, "Not comparable: each architecture has a denoising objective, and so a loss, of its own."
    if len({run.data_sha256 for run in group.runs}) > 1:
        return None, "Not comparable: the runs did not use the same data (data_sha256 differs)."
    if diverged := [run.directory for run in group.runs if not math.isfinite(group.value(run))]:
        return None, f"No verdict: no finite {metric.key} from {', '.join(diverged)}."
    for found in runs.values():
        same = len({(run.experiment, run.params, run.updates) for run in found}) == 1
        if not same or len({run.seed for run in found}) < len(found):
            return None, (
                f"No verdict: the {len(found)} {_name(found[0])} runs are not one configuration with different seeds;"
                " compare one configuration of each architecture."
            )
    means = {name: fmean(found) for name, found in values.items()}
    ranking = sorted(means, key=lambda name: means[name], reverse=metric.higher_is_better)
    if min(map(len, values.values())) == 1:
        several = max(map(len, values.values())) > 1
        shown = [
            f"{ARCHITECTURES[name]} {metric.show(means[name])}" + (f" ({_seeds(values[name])})" if several else "")
            for name in ranking
        ]
        note = "" if several else ", one seed each"
        return None, f"{' vs '.join(shown)}{note}: not distinguishable without more seeds."
    shown = [f"{ARCHITECTURES[name]} {metric.show(means[name])} ({_seeds(values[name])})" for name in ranking]
    best, *others = ranking
    sign = 1 if metric.higher_is_better else -1
    lead = []
    wins = True
    for other in others:
        low, high = sorted(sign * end for end in welch_interval(values[best], values[other]))
        wins = wins and low > 0
        shown_interval = f"95 % interval {metric.show_difference(low, high)}"
        ahead = metric.show_difference(abs(means[best] - means[other]))
        reason = shown_interval if math.isfinite(low) else "no spread over seeds"
        lead.append(f"{ahead} ahead of {ARCHITECTURES[other]} ({reason})")
    said = f"{' vs '.join(shown)}; {ARCHITECTURES[best]} is {', '.join(lead)}"
    if wins:
        return best, f"{said}: {ARCHITECTURES[best]} is better."
    return None, f"{said}: no winner is distinguishable."


def _name(run: Run) -> str:
    return ARCHITECTURES[run.architecture]


def _seeds(values: Sequence[float]) -> str:
    return "1 seed" if len(values) == 1 else f"mean of {len(values)} seeds"


_AUDITED = {
    "data_sha256": "The data differ: scores are not of the same examples.",
    "tokenizer_sha256": "The tokenizers differ: scores per token, and numbers of tokens, cannot be compared.",
    "tokens_per_update": "The tokens per update differ.",
    "updates": "The numbers of updates differ.",
    "params": "The numbers of parameters differ.",
    "train_flops": "The training compute differs.",
    "precision": "The precision differs.",
    "hardware": "The hardware differs: times and speeds cannot be compared.",
    "git_commit": "The code differs.",
    "versions": "The versions of libraries differ.",
    "tested_weights": "Some runs tested their last weights and some their best ones.",
}
_TOLERANT = ("tokens_per_update", "params", "train_flops")


def audit(group: Group) -> list[Difference]:
    """List what differs between the runs of a group besides the architecture.

    Args:
        group: the runs.

    Returns:
        one entry for each field that differs; params, FLOPs and tokens per update only from 2 % on.
    """
    found = []
    for field, text in _AUDITED.items():
        values = {run.directory: getattr(run, field) for run in group.runs}
        distinct = list(values.values())
        if field in _TOLERANT:
            low, high = min(distinct), max(distinct)
            if high - low <= TOLERANCE * low:
                continue
            text = f"{text[:-1]} by up to {100 * (high / low - 1):.0f} %." if low > 0 else text
        elif all(value == distinct[0] for value in distinct):
            continue
        elif field == "versions":
            names = {name for value in distinct for name in value}
            differing = sorted(name for name in names if len({value.get(name) for value in distinct}) > 1)
            text = f"{text[:-1]}: {', '.join(differing)}."
        found.append(Difference(group.task, field, values, text))
    return found
