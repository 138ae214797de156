"""The cost of reaching a validation score.

Tested by tests/report/test_findings.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from triptych.report.labels import COSTS
from triptych.report.read_records import RecordedRun
from triptych.report.statistics.groups import Group
from triptych.report.statistics.metrics import validation_key


@dataclass(frozen=True, slots=True)
class CostToTarget:
    """The cost at which each configuration reached a score that all of them reach.

    Attributes:
        target: the score.
        costs: by configuration name, the mean over seeds on each clock; without FLOPs if the runs do not count them
            alike.
    """

    target: float
    costs: Mapping[str, Mapping[str, float]]


def cost_to_reach(group: Group, run: RecordedRun, target: float, clock: str) -> float | None:
    """The cost of a run at its first validation that was as good as the target; None if it never was.

    Args:
        clock: one of ``COSTS``.

    Raises:
        KeyError: the run has no such curve.
    """
    curve = run.curves[validation_key(group.metric, run)]
    sign = 1 if group.metric.higher_is_better else -1
    reached = (step for step, value in zip(curve.steps, curve.values, strict=True) if sign * (value - target) >= 0)
    step = next(reached, None)
    if step is None or clock == "steps":
        return None if step is None else min(step + 1, run.steps)  # a last validation is logged at the last step
    return dict(zip(run.curves[clock].steps, run.curves[clock].values, strict=True))[step]


def reach(group: Group) -> CostToTarget | None:
    """The cost at which each configuration of a group was as good as the worst one's best score. None if a run was not
    validated by the metric, or recorded no costs."""
    keys = [(run, validation_key(group.metric, run)) for run in group.runs]
    if not all(key in run.curves and {"train_flops", "elapsed_s"} <= {*run.curves} for run, key in keys):
        return None
    finite = [[value for value in run.curves[key].values if math.isfinite(value)] for run, key in keys]
    if not all(finite):
        return None
    best, worst = (max, min) if group.metric.higher_is_better else (min, max)
    target = worst(best(values) for values in finite)
    costs = {
        contender.name: {
            clock: fmean(cost_to_reach(group, run, target, clock) or math.nan for run in contender.runs)
            for clock in COSTS
            if clock != "train_flops" or group.counts_alike
        }
        for contender in group.contenders
    }
    return CostToTarget(target, costs)
