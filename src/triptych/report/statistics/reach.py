"""What it costs to reach a score in validation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from triptych.report.read_records import Run
from triptych.report.statistics.metrics import validation_key
from triptych.report.statistics.verdicts import Group
from triptych.report.wording import COSTS


@dataclass(frozen=True, slots=True)
class Reach:
    """What each configuration has spent until it reached a score that all of them reach.

    Attributes:
        target: the score.
        costs: by the name of a configuration, of each clock the mean over its seeds; without operations, where these
            are not counted alike.
    """

    target: float
    costs: Mapping[str, Mapping[str, float]]


def cost_to_reach(group: Group, run: Run, target: float, clock: str) -> float | None:
    """What a run had spent at the first validation that was as good as the target.

    Args:
        clock: one of ``COSTS``.

    Returns:
        None: it never was.

    Raises:
        KeyError: the run has no such curve.
    """
    curve = run.curves[validation_key(group.metric, run)]
    sign = 1 if group.metric.higher_is_better else -1
    reached = (step for step, value in zip(curve.steps, curve.values, strict=True) if sign * (value - target) >= 0)
    step = next(reached, None)
    if step is None or clock == "updates":
        return None if step is None else step + 1
    return dict(zip(run.curves[clock].steps, run.curves[clock].values, strict=True))[step]


def reach(group: Group) -> Reach | None:
    """How soon each configuration was as good as the one that got least far; None where a run was not validated by the
    metric, or kept no costs.

    Args:
        group: of several configurations.
    """
    keys = [(run, validation_key(group.metric, run)) for run in group.runs]
    if not all(key in run.curves and {"train_flops", "time_s"} <= {*run.curves} for run, key in keys):
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
    return Reach(target, costs)
