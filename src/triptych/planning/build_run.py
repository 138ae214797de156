"""Builds a run from a plan: the task with its network, the data and the trainer.

Tested by tests/cli/test_runs.py.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf

from triptych.assembly.init_from import InitialWeights
from triptych.assembly.loaders import check_rank_shares, make_data_module
from triptych.assembly.make_task import make_module, make_task, without_values
from triptych.config import counted, error_prefix
from triptych.config.run_settings import RunSettings
from triptych.config.schema import full_precision
from triptych.data import DataModule, LongText
from triptych.launch.processes import RankInfo
from triptych.models.flops import count_parameters
from triptych.planning.prepare import Plan
from triptych.storage.atomic import write_text
from triptych.storage.run_directory import RunDirectory
from triptych.tasks import Task
from triptych.training import CheckpointMetadata, CheckpointSaver, TrainingModule
from triptych.training.callbacks.checkpoint_saver import check_metric, validation_metrics
from triptych.training.callbacks.cost_tracker import CostTracker
from triptych.training.hardware import keep_freed_memory
from triptych.training.optimizers import ScheduleFreeAdamW
from triptych.training.resume import prepare_directory

log = logging.getLogger("triptych")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run that is ready to train.

    Attributes:
        module: LightningModule of the task.
        data: batches.
        cost_log: callback that measures the cost of the training.
        checkpoints: callback that saves the checkpoints.
        loggers: loggers of the trainer.
        rank: rank of this process.
    """

    plan: Plan
    module: TrainingModule
    data: DataModule
    trainer: L.Trainer
    cost_log: CostTracker
    checkpoints: CheckpointSaver
    loggers: Sequence[Logger]
    rank: int

    @property
    def task(self) -> Task:
        """The task of the module."""
        return self.module.task

    @property
    def settings(self) -> RunSettings:
        """The settings of the plan."""
        return self.plan.settings

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.plan.settings.run_dir


def build_run(plan: Plan, place: RankInfo) -> TrainingRun:
    """Builds everything for training."""
    keep_freed_memory()
    settings, splits = plan.settings, plan.data.splits
    with error_prefix():
        task = make_task(settings, plan.data.tokenizer, plan.data.info)
        if full_precision(settings.trainer.precision) == "64-true":
            task.network.double()  # Lightning would do it after loading a checkpoint, which would round that to float32
        new_weights = (
            plan.origin.load_into(task) if plan.earlier is None and isinstance(plan.origin, InitialWeights) else ()
        )
        has_one_shape = not task.has_tokens or isinstance(splits.train, LongText)
        module = make_module(settings, task, has_one_shape=has_one_shape, new_weights=new_weights)
        if plan.earlier is not None:
            plan.earlier.check_network(module)
        data = make_data_module(settings, task, splits)
        data.train_dataloader()  # checks that the batch size can be split
        assert module.make_optimizer is not None
        cost_log = CostTracker(without_values(task.network), module.make_optimizer)
    task.warn_of_scripts(splits.test)
    if plan.earlier is not None:
        data.start = plan.earlier.step
    loggers: list[Logger] = [settings.build(f"logger.{name}") for name in settings.loggers]
    callbacks = {name: settings.build(f"callbacks.{name}") for name in settings.callbacks}
    for name, callback in callbacks.items():
        if isinstance(callback, EarlyStopping):
            check_metric(f"callbacks.{name}.monitor", callback.monitor, validation_metrics(module))
    if isinstance(module.make_optimizer, ScheduleFreeAdamW):
        from triptych.training.schedule_free import AverageOfOptimizer  # an optional dependency

        callbacks["average"] = AverageOfOptimizer()
    (checkpoints,) = (callback for callback in callbacks.values() if isinstance(callback, CheckpointSaver))
    checkpoints.stays_stopped = plan.earlier is None or plan.earlier.early_stop is not None
    given = {
        "logger": loggers,
        "callbacks": [*callbacks.values(), cost_log, CheckpointMetadata(plan.plain, task)],
        "plugins": [checkpoints.files, place.environment()],
    }
    trainer: L.Trainer = settings.build("trainer", given)
    with error_prefix():
        check_rank_shares(settings.trainer, data, trainer.world_size)
    return TrainingRun(plan, module, data, trainer, cost_log, checkpoints, loggers, place.rank)


def begin_directory(run: TrainingRun) -> None:
    """Writes the files of a run that are known before its first step, after all checks of user input."""
    plan, task, tokenizer = run.plan, run.task, run.plan.data.tokenizer
    files = RunDirectory(run.run_dir)
    if run.rank == 0:
        prepare_directory(run.run_dir, run.loggers, plan.earlier)
        if plan.match is None:
            files.match.unlink(missing_ok=True)
        else:
            write_text(files.match, json.dumps(plan.redact(asdict(plan.match)), indent=2) + "\n")
        write_text(files.config, OmegaConf.to_yaml(OmegaConf.create(plan.plain)))
        if task.has_tokens:
            write_text(files.tokenizer, tokenizer.to_json())
    parameters = f"{count_parameters(task.network)[0]:,} parameters"
    inputs = f"{tokenizer.vocab_size} tokens in the vocabulary" if task.has_tokens else "images in patches"
    steps = counted(plan.settings.trainer.max_steps, "step")
    log.info("%s on %s: %s, %s, %s; run directory %s", task.name, plan.model, parameters, inputs, steps, run.run_dir)
    if plan.earlier is not None and plan.earlier.early_stop is None:
        log.warning("resuming from %s, after %s", plan.earlier.path, counted(plan.earlier.step, "step"))
