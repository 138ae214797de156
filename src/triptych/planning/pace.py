"""Measures the speed of runs on this computer: runs some steps of each, in turns.

Tested by tests/planning/test_matching.py.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import lightning as L
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import WeightAveraging
from omegaconf import DictConfig

from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import make_module, make_task, without_values
from triptych.config.run_settings import RunSettings
from triptych.data import Batch, DataModule
from triptych.planning.batch_shapes import BatchEstimate, ReadData, StepShapes
from triptych.planning.matching import SAMPLE, STEPS, StepTiming, operations
from triptych.training.callbacks.cost_tracker import CostTracker, shape_of
from triptych.training.lightning_module import TrainingModule

ROUNDS = 3
"""Turns of each run, so that other load on the computer affects all runs equally."""
LEAST_UPDATES, ROUND_S = 6, 3.0
"""Minimum number of steps and seconds per turn."""


class Stopwatch(L.Callback):
    """Times each step except the first of a turn, ends the turn, and times the validation at its end.

    Attributes:
        steps: timed steps.
        seconds: duration of each step.
        validations: duration of each validation.
    """

    def __init__(self) -> None:
        self.steps: list[StepShapes] = []
        self.seconds: list[float] = []
        self.validations: list[float] = []
        self._turn: list[StepShapes] = []
        self._starts: list[float] = []
        self._validation_started = 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Records the start time of a step, and its batches."""
        assert isinstance(pl_module, TrainingModule)
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._starts.append(now(pl_module.device))
            self._turn.append(StepShapes(Counter(), 0))
            is_over = self._starts[-1] - self._starts[0] > ROUND_S and len(self._turn) > LEAST_UPDATES
            trainer.should_stop = trainer.should_stop or is_over
        step = self._turn[-1]
        unanswered = step.unprojected + pl_module.task.num_unprojected(batch)
        shapes = Counter(step.shapes) + Counter([shape_of(batch, pl_module.network)])
        self._turn[-1] = StepShapes(shapes, step.tokens + batch.num_nonpadding, unanswered)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Records the start time of a validation."""
        self._validation_started = now(pl_module.device)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Records the duration of a validation."""
        self.validations.append(now(pl_module.device) - self._validation_started)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adds the turn to the earlier ones."""
        self.seconds += [after - before for before, after in pairwise(self._starts[1:])]
        self.steps += self._turn[1:-1]
        self._turn, self._starts = [], []


class TimedTraining:
    """A run to be timed in turns."""

    def __init__(self, config: DictConfig, data: ReadData, environment: ClusterEnvironment) -> None:
        endless, self.environment = data.complete(config), environment
        endless.trainer.val_check_interval = endless.trainer.max_steps = 10**9
        self.settings = RunSettings.of(endless)
        self.interval = config.trainer.val_check_interval / config.trainer.accumulate_grad_batches
        self.estimate: BatchEstimate = data.estimate(config, sample=SAMPLE, num_steps=STEPS)
        task = make_task(self.settings, data.tokenizer, data.info)
        self.module = make_module(self.settings, task)
        self.data: DataModule = make_data_module(self.settings, task, data.splits)
        self.stopwatch = Stopwatch()

    def take_turn(self) -> None:
        """Runs some steps, continuing after the previous turn, and a validation."""
        self.data.start = len(self.stopwatch.steps)
        averages = [
            self.settings.build(f"callbacks.{name}")
            for name in self.settings.callbacks
            if issubclass(self.settings.target(f"callbacks.{name}"), WeightAveraging)
        ]
        assert self.module.make_optimizer is not None
        cost_log = CostTracker(without_values(self.module.network), self.module.make_optimizer)
        given = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "callbacks": [*averages, cost_log, self.stopwatch],
            "plugins": [self.environment],
        }
        self.settings.build("trainer", given).fit(self.module, self.data)

    def pace(self) -> StepTiming:
        """The mean speed; time is assumed to be proportional to FLOPs, because the timed steps may differ from
        others."""
        rate = sum(self.stopwatch.seconds) / sum(operations(replace(self.estimate, steps=self.stopwatch.steps)))
        validation = fmean(self.stopwatch.validations or [0.0])
        return StepTiming(rate * fmean(operations(self.estimate)), validation, self.interval)


def measure_paces(data: ReadData, environment: ClusterEnvironment, configs: Sequence[DictConfig]) -> list[StepTiming]:
    """The speed of each run, measured in real steps and validations on its data, without checkpoints, loggers and
    start-up."""
    trainings = [TimedTraining(config, data, environment) for config in configs]
    for _ in range(ROUNDS):
        for training in trainings:
            training.take_turn()
    return [training.pace() for training in trainings]


def now(device: torch.device) -> float:
    """The time in seconds, after synchronizing with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
