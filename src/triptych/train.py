"""``triptych train``: one training run, from the configuration to the record in its run directory.

Tested by tests/cli/test_runs.py, tests/training/test_strategies.py and tests/training/test_compile.py.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import WeightAveraging
from omegaconf import DictConfig

from triptych.assembly.checks import check_before_data
from triptych.config import ConfigError
from triptych.config.overrides import write_override
from triptych.evaluate import measure
from triptych.launch import signals
from triptych.launch.command import Command, this_command
from triptych.launch.forks import has_only_imported
from triptych.launch.processes import RankInfo, depends_on_clock, detect_rank, run_processes, silence
from triptych.planning.build_run import TrainingRun, begin_directory, build_run
from triptych.planning.prepare import adopt_settings, choose, find_reference, make_plan
from triptych.report.summary import labels
from triptych.report.write_record import write_record
from triptych.search.pruning import Pruned
from triptych.storage.atomic import write_text
from triptych.storage.run_directory import RunDirectory
from triptych.training import CSVLogger, WandbLogger, read_checkpoint
from triptych.training.failures import explained
from triptych.training.resume import is_finished
from triptych.training.strategies import check_place

log = logging.getLogger("triptych")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a training run.

    Attributes:
        metrics: metrics of the tested weights.
        record: content of summary.json; empty on ranks other than 0.
        run: task, data and trainer of the run.
    """

    metrics: Mapping[str, float]
    record: Mapping[str, Any]
    run: TrainingRun


def train(config: DictConfig) -> TrainingResult | None:
    """Trains, validates and tests a run, and resumes it if it is unfinished.

    Writes config.yaml, metrics.csv, tokenizer.json, checkpoints, train.log, weights.safetensors, attention.json and
    summary.json into ``run_dir``. A trial of a search is not tested; the same run without the search resumes and is
    tested.

    Args:
        config: composed by Hydra from conf/train.yaml.

    Returns:
        The result of the run; None: ``run_dir`` already contains this run, finished, or a search pruned it.

    Raises:
        Interruption: if the run is asked to end; the same command resumes it.
    """
    command, place = this_command(), detect_rank()
    if place.rank:
        silence()
    chosen = choose(config, adopt_settings(config))
    chosen.redact.guard_logging()
    if is_finished(chosen.config, chosen.plain):
        if place.rank == 0:
            print(f"{config.run_dir} holds this run, finished: nothing to do", flush=True)
        return None
    world_size = count_processes(config, place)
    reference = find_reference(chosen, command.overrides, world_size)
    Path(config.run_dir).mkdir(parents=True, exist_ok=True)
    if place.starter is None and world_size > 1:
        raise SystemExit(start_processes(config, command, world_size))
    run = build_run(make_plan(chosen, reference, command.data, place.environment(), world_size), place)
    resumed = None if run.plan.earlier is None else run.plan.earlier.path
    begin_directory(run)
    tests = "pruning" not in config.callbacks  # a trial of a search is not tested
    with (
        leaving_the_others(),
        ending_in_order(run, command),
        explained(run.settings, run.trainer, run.module, run.data),
    ):
        run.trainer.fit(run.module, run.data, ckpt_path=resumed, weights_only=True)
        load_tested_weights(run.trainer, run.settings.test_weights, RunDirectory(run.run_dir).best)
        metrics = measure(run.trainer, run.module, run.data, tests=tests)
        result = TrainingResult(metrics, write_record(run, metrics, command, tests=tests), run)
        if place.rank == 0 and tests:
            made = write_override("checkpoint", str(run.run_dir))
            print(f"next: triptych predict {made} input=FILE, or triptych compare {run.run_dir} OTHER_RUN", flush=True)
        return result
    return None  # a search pruned the trial, which ended in order


def count_processes(config: DictConfig, place: RankInfo) -> int:
    """Returns the number of processes of the run, after all checks that need the configuration only."""
    if place.starter == "parent":  # it has checked the configuration
        return place.world_size
    check_before_data(config)
    return check_place(config, place)


def start_processes(config: DictConfig, command: Command, world_size: int) -> int:
    """Runs this command once per device, and returns the exit status."""
    if command.is_job:
        raise ConfigError(
            f"trainer.devices={config.trainer.devices}: this launcher starts one process; expected hydra/launcher="
            "local, joblib or slurm, or as many tasks_per_node"
        )
    arguments = ["train", *sys.argv[1:], *([f"run_dir={config.run_dir}"] if depends_on_clock(config) else [])]
    forks = has_only_imported() and not torch.accelerator.is_available()  # a GPU cannot be used after a fork
    started = arguments if forks else [sys.executable, "-m", "triptych", *arguments]
    return run_processes(started, world_size, Path(config.run_dir), forks=forks)


@contextmanager
def leaving_the_others() -> Iterator[None]:
    """Destroys the process group, except after a failure, when pending operations may wait forever."""
    # A thread of gloo that still runs while Python exits may abort it.
    failed = True
    try:
        yield
        failed = False
    except signals.Interruption:
        failed = False
        raise
    finally:
        if not failed and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def ending_in_order(run: TrainingRun, command: Command) -> Iterator[None]:
    """Catches signals (to handle between steps), finishes the W&B run with its status, and records a pruned trial.
    After an interruption, signals stay caught until the process exits: a terminal that closes may send several."""
    loggers = [logger for logger in run.loggers if isinstance(logger, WandbLogger)]
    failed = True
    handlers = signals.catch_signals(*signals.STOPS)
    try:
        for logger in loggers:
            logger.describe(run.plan.redact(labels(run, command)))
            logger.log_hyperparams(run.plan.plain)
            if run.rank == 0 and run.plan.earlier is not None:
                logger.log_again(row for other in run.loggers if isinstance(other, CSVLogger) for row in other.rows())
        yield
        failed = False
    except Pruned as pruned:
        failed = False
        if run.rank == 0:
            note = {"steps": pruned.step, "task": run.task.name, "data": command.data}
            note |= {"architecture": run.task.architecture}
            write_text(RunDirectory(run.run_dir).pruned, json.dumps(note) + "\n")
            log.info("%s: other trials of the search were better by then", pruned)
    except signals.Interruption:
        handlers = {}
        raise
    finally:
        for logger in loggers:
            logger.finish(failed=failed)
        signals.restore_handlers(handlers)


def load_tested_weights(trainer: L.Trainer, weights: str, best: Path) -> None:
    """Loads the weights to test into the network.

    Args:
        weights: last or best (by validation).
        best: checkpoint with the best weights.
    """
    # A moving average is in the weights, or in the best ones; Lightning would validate the last average instead.
    trainer.callbacks = [c for c in trainer.callbacks if not isinstance(c, WeightAveraging)]  # type: ignore[attr-defined]
    if weights == "best":
        trainer.strategy.load_model_state_dict(read_checkpoint(best))
