"""Reasons for caution: scores of a constant prediction, and runs that were still improving or that overfit."""

import math
from collections.abc import Sequence
from statistics import fmean

from triptych.report.read_records import RecordedRun
from triptych.report.statistics.groups import ComparedConfig, Group
from triptych.report.statistics.metrics import validation_key

LATE = 0.1
"""Share of the total improvement that counts as large in the last quarter of the validations."""


def find_caveats(group: Group) -> list[str]:
    """The caveats of a group, one sentence each, as shown on the page: of the configurations in its charts."""
    group = group.strongest
    late = [contender for contender in group.contenders if is_still_learning(group, contender.runs)]
    return [*_without_learning(group), *([_unfinished(late)] if late else []), *_overfitting(group)]


def _without_learning(group: Group) -> list[str]:
    """Compares scores with always predicting the most frequent class of the shared test set."""
    if group.commonest_class is None:
        return []
    share, label = group.commonest_class
    below = [
        contender.name
        for contender in group.contenders
        if (values := [x for run in contender.runs if math.isfinite(x := group.value(run))]) and fmean(values) <= share
    ]
    worse = f"; {', '.join(below)} {'is' if len(below) == 1 else 'are'} no better" if below else ""
    return [f"Always predicting “{label}” scores {group.metric.show(share)}{worse}."]


def is_still_learning(group: Group, runs: Sequence[RecordedRun]) -> bool:
    """Whether on average at least ``LATE`` of the runs' improvement in validation came in the last quarter.

    Args:
        runs: of one configuration.
    """
    shares = []
    for run in runs:
        key, best = validation_key(group.metric, run), max if group.metric.higher_is_better else min
        if key not in run.curves:  # a metric of generated texts, computed only in the test
            key, best = "val/loss", min
        values = [value for value in run.curves[key].values if math.isfinite(value)] if key in run.curves else []
        if len(values) < 4:
            return False
        before, whole = best(values[: math.ceil(0.75 * len(values))]), best(values) - values[0]
        shares.append((best(values) - before) / whole if whole else 0.0)
    return fmean(shares) >= LATE


def _overfitting(group: Group) -> list[str]:
    """Configurations whose validation loss rose by at least ``LATE`` after its minimum, on average over the runs."""
    found = []
    for contender in group.contenders:
        curves = [run.curves["val/loss"] for run in contender.runs if "val/loss" in run.curves]
        lowest = [min(curve.values) for curve in curves]
        if not curves or min(lowest) <= 0:
            continue
        rise = fmean(curve.values[-1] for curve in curves) / fmean(lowest) - 1
        if not rise >= LATE:  # NaN is no rise
            continue
        best = fmean(curve.steps[curve.values.index(x)] + 1 for curve, x in zip(curves, lowest, strict=True))
        found.append(
            f"{contender.name} overfits: its validation loss was lowest at step {best:,.0f} of "
            f"{fmean(curve.steps[-1] + 1 for curve in curves):,.0f}, and is {100 * rise:.0f} % higher at the end."
        )
    return found


def _unfinished(late: Sequence[ComparedConfig]) -> str:
    names = [contender.name for contender in late]
    which = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"At the end, {which} {'was' if len(names) == 1 else 'were'} still improving: at least a tenth of the "
        "improvement in validation came in the last quarter. More steps may change the order (trainer.max_steps)."
    )
