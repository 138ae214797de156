"""The metrics of one model, for the terminal.

Tested by tests/cli/test_runs.py.
"""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.tasks import Task
from triptych.training import TrainingModule

MOST_CLASSES = 20
"""A larger confusion matrix is not printed; summary.json has it."""


def show_metrics(title: str, metrics: Mapping[str, float], module: TrainingModule) -> None:
    """Prints a row per metric (``test/bleu``), and the confusion matrix of the test split."""
    task = module.task
    table = Table("metric", title=title, title_justify="left")
    table.add_column("value", justify="right")
    if task.signatures:
        table.add_column("computed as", overflow="fold")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}", *([signature(task, name)] if task.signatures else []))
    Console().print(table)
    show_confusion(module)


def signature(task: Task, metric: str) -> str:
    """How a metric is computed, where that has a standard form: sacrebleu's signature of ``test/bleu``."""
    return task.signatures.get(metric.partition("/")[2], "")


def show_confusion(module: TrainingModule) -> None:
    """Prints the confusion matrix of the test split, if the task has classes."""
    counts, labels = module.matrix_metrics.get("test/confusion_matrix"), module.task.labels
    if counts is None or len(labels) > MOST_CLASSES:
        return
    table = Table("true class", title="test/confusion_matrix", title_justify="left")
    names = [label if label.isprintable() and label == label.strip() != "" else repr(label) for label in labels]
    for name in names:
        table.add_column(Text(f"as {name}"), justify="right")
    for name, row in zip(names, counts, strict=True):
        table.add_row(Text(name), *map(str, row))
    Console().print(table)
