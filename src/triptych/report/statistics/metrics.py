"""Which score the runs of a task are compared by."""

from collections.abc import Sequence

from triptych.report.read_records import Run
from triptych.tasks.scores import Score


def metric_key(score: Score, run: Run) -> str:
    """The key that holds the score in this run: the full model's ``test/bits_per_byte`` is its continuation's."""
    return next((own.key for own in run.task_facts.scores if own.name == score.name), score.key)


def validation_key(score: Score, run: Run) -> str:
    """The key that holds the same on the validation set, in metrics and curves."""
    return metric_key(score, run).replace("test/", "val/", 1)


def primary_metric(runs: Sequence[Run]) -> Score:
    """Choose the score that all runs of one task are compared by: the first that all of them have.

    Args:
        runs: the runs of one task on the same data.
    """
    names = [{score.name for score in run.task_facts.scores} for run in runs]
    common = [score for run in runs for score in run.task_facts.scores if all(score.name in own for own in names)]
    if not common:
        raise ValueError(f"{runs[-1].directory}/summary.json: its task_facts have no score of {runs[0].directory}")
    named = [score for score in common if score.name == common[0].name]
    score = next((score for score in named if score.key == f"test/{score.name}"), named[0])
    for run in runs:
        if (key := metric_key(score, run)) not in run.metrics:
            raise ValueError(f"{run.directory}/summary.json: key metrics has no {key}, expected in each {run.task} run")
    return score
