"""Selects the metric that compares the runs of a task.

Tested by tests/report/test_read_records.py.
"""

from collections.abc import Sequence

from triptych.report.read_records import RecordedRun
from triptych.tasks.metric_specs import MetricSpec


def own_metric(score: MetricSpec, run: RecordedRun) -> MetricSpec:
    """The metric as the run has it: its key may differ, and its values may be upper bounds."""
    return next((own for own in run.task_info.comparison_metrics if own.name == score.name), score)


def metric_key(score: MetricSpec, run: RecordedRun) -> str:
    """The key of the metric in this run: for the full model, ``test/bits_per_byte`` is that of the continuation."""
    return own_metric(score, run).key


def validation_key(score: MetricSpec, run: RecordedRun) -> str:
    """The key of the same metric on the validation set, in metrics and curves."""
    return metric_key(score, run).replace("test/", "val/", 1)


def primary_metric(runs: Sequence[RecordedRun]) -> MetricSpec:
    """The first of the task's comparison metrics that all runs have. The runs are of one task on the same data."""
    names = [{score.name for score in run.task_info.comparison_metrics if score.key in run.metrics} for run in runs]
    shared = set.intersection(*names)
    common = [score for run in runs for score in run.task_info.comparison_metrics if score.name in shared]
    if not common:
        expected = ", ".join(score.key for score in runs[-1].task_info.comparison_metrics)
        raise ValueError(f"{runs[-1].directory}/summary.json: {runs[0].directory} has none of its scores ({expected})")
    named = [score for score in common if score.name == common[0].name]
    return next((score for score in named if score.key == f"test/{score.name}"), named[0])
