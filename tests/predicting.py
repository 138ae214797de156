"""Tasks in tests: what they predict, and in which mode and type their network is."""

from collections.abc import Sequence
from typing import Any, TypeVar

from triptych.tasks import Predictor, Task

AnyTask = TypeVar("AnyTask", bound=Task)


def predict(task: Task, texts: Sequence[Any], **options: Any) -> list[Any]:
    return Predictor(task).predict(texts, **options)


def evaluating(task: AnyTask) -> AnyTask:
    task.network.eval()
    return task


def in_double(task: AnyTask) -> AnyTask:
    task.network.double()
    return task
