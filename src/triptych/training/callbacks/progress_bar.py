"""The progress of a run: a bar, or lines."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import CustomTimeColumn
from lightning.pytorch.trainer.states import TrainerFn
from rich.progress import ProgressColumn, TimeRemainingColumn

from triptych.config import duration
from triptych.tasks import Task
from triptych.training.lightning_module import TrainingModule

log = logging.getLogger("triptych")

SILENT_S = 60.0
"""Maximum number of seconds between two lines."""


class ProgressBar(RichProgressBar):
    """Lightning's progress bar in steps or, if output is no terminal, a line per validation and at least per minute.

    Args:
        refresh_rate: number of refreshes per second, each of which takes milliseconds; 0: no bar.
    """

    def __init__(self, *, refresh_rate: int = 4) -> None:
        super().__init__(refresh_rate=refresh_rate if sys.stdout.isatty() else 0, leave=True)
        self._began = self._said = 0.0
        self._first = 0

    @property
    def total_train_batches(self) -> int:
        """The number of batches of the run, including those before a resume. (Lightning counts the remaining ones.)"""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock."""
        super().on_train_start(trainer, pl_module)
        self._began = self._said = time.monotonic()
        self._first = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Logs a line, if the last one is ``SILENT_S`` ago."""
        super().on_train_batch_end(trainer, pl_module, *args)
        if self.is_disabled and time.monotonic() - self._said >= SILENT_S:
            metrics = self.get_metrics(trainer, pl_module)
            self._say(trainer, [f"{name} {value:.3f}" for name, value in metrics.items()])

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs a line with the validation metrics."""
        super().on_validation_end(trainer, pl_module)
        if self.is_disabled and trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            assert isinstance(pl_module, TrainingModule)
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._say(trainer, progress_line(pl_module.task, metrics))

    def _say(self, trainer: L.Trainer, measured: list[str]) -> None:
        if not trainer.is_global_zero:
            return
        self._said, step = time.monotonic(), trainer.global_step
        said = ", ".join(measured)
        if (left := trainer.max_steps - step) and step > self._first:
            seconds = left * (self._said - self._began) / (step - self._first)
            said += f"; {left:,} left, about {duration(max(seconds, 1.0))}"
        log.info("step %s of %s: %s", f"{step:,}", f"{trainer.max_steps:,}", said.removeprefix("; "))

    def configure_columns(self, trainer: L.Trainer) -> list[ProgressColumn]:
        """Returns Lightning's columns, with the remaining or the total time, since both do not fit into 80 columns."""
        columns: list[ProgressColumn] = super().configure_columns(trainer)
        left = TimeRemainingColumn(elapsed_when_finished=True)
        return [left if isinstance(column, CustomTimeColumn) else column for column in columns]

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training".ljust(len(self.validation_description))

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Returns only the loss, since more metrics do not fit into one line of 80 columns."""
        metrics = trainer.progress_bar_metrics
        return {"loss": metrics["train/loss"]} if "train/loss" in metrics else {}


def progress_line(task: Task, metrics: Mapping[str, float]) -> list[str]:
    """Formats the validation loss, and the score that compares runs, if validation measures one.

    Args:
        metrics: metrics by name, including ``val/loss``.
    """
    tested = {name.replace("val/", "test/", 1): value for name, value in metrics.items() if name.startswith("val/")}
    # for a corpus without a known optimum, another score compares runs, which may need decoding, and so the test
    optima: list[dict[str, float]] = [{}, tested]
    scores = [score for optimum in optima for score in task.comparison_metrics(task.architecture, tested, optimum)]
    shown = [f"{s.title} {s.show(tested[s.key])}" for s in scores if s.key in tested and s.key != "test/loss"]
    return [f"validation loss {tested['test/loss']:.3f}", *shown[:1]]
