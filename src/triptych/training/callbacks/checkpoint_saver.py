"""Saving, keeping and resuming from checkpoints."""

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn

from triptych.config import ConfigError, RunError, nearest
from triptych.data import Batch
from triptych.launch import signals
from triptych.launch.lock import check_held
from triptych.nn.device_copy import HostCopy, copy_to_device
from triptych.storage.atomic import link, remove_leftovers
from triptych.storage.run_directory import BEST, LAST
from triptych.training.checkpoint_file import CheckpointFiles, damage_of
from triptych.training.lightning_module import TrainingModule
from triptych.training.loggers.csv import CSVLogger

log = logging.getLogger("triptych")


class CheckpointSaver(Checkpoint):
    """Saves the complete state of a run between two steps, and resumes exactly from it.

    The checkpoint after step k, ``step-k.ckpt``, contains weights, optimizer, schedule, moving average, counters and
    values that are not logged yet. The examples and random numbers of step k + 1 are functions of the seed and k, so
    they need no state. ``last.ckpt`` and ``best.ckpt`` are links to such files.

    If a validation is due after step k, the checkpoint is saved after it. If the run is asked to end during a
    validation, the checkpoint records that the validation is pending.

    All ranks handle a signal after the same step, the one that follows the step in which it arrives: they read their
    agreement one step later, to avoid synchronizing with the GPU.

    Args:
        dirpath: folder of the checkpoints.
        every_n_steps: number of steps between checkpoints; None: not by steps.
        every_n_minutes: minutes between checkpoints; None: not by time.
        keep_latest: number of newest checkpoints to keep.
        monitor: validation metric that determines the best checkpoint.
        mode: whether the lowest (min) or highest (max) value is best.
        async_save: whether training continues while a copy of the state is written.

    Attributes:
        best: the best value of ``monitor`` so far.
        best_step: the step of this validation; 0: none.
        stays_stopped: whether a resumed run that a callback stopped early does not train further.

    Raises:
        ValueError: if a number is below 1, or ``every_n_minutes`` is not positive.
    """

    def __init__(
        self,
        *,
        dirpath: str,
        every_n_steps: int | None,
        every_n_minutes: float | None,
        keep_latest: int,
        monitor: str,
        mode: Literal["min", "max"],
        async_save: bool,
    ) -> None:
        for name, value in (("every_n_steps", every_n_steps), ("keep_latest", keep_latest)):
            if value is not None and value < 1:
                raise ValueError(f"callbacks.checkpoints.{name}={value}: expected at least 1")
        if every_n_minutes is not None and not every_n_minutes > 0:
            raise ValueError(f"callbacks.checkpoints.every_n_minutes={every_n_minutes}: expected more than 0")
        self.folder, self.keep, self.monitor, self.mode = Path(dirpath), keep_latest, monitor, mode
        self.every_n_steps, self.every_n_minutes = every_n_steps, every_n_minutes
        self.files = CheckpointFiles(background=async_save)
        self.best: float = math.inf if mode == "min" else -math.inf
        self.best_step = 0
        self._pending_validation = False
        self._should_stop = False
        self.stays_stopped = True
        self._resumed = False
        self._saved: tuple[int, bool] | None = None
        self._saved_at = time.monotonic()
        self._agreement: HostCopy | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the callback."""
        return {
            "best": self.best,
            "monitor": [self.monitor, self.mode],
            "best_step": self.best_step,
            "pending_validation": self._pending_validation,
            "should_stop": self._should_stop,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state when a run resumes."""
        own = [self.monitor, self.mode]
        # The best value of another metric is ignored. Older checkpoints do not name theirs: it is the configured one.
        if state_dict.get("monitor", own) == own:
            self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self._pending_validation, self._should_stop = state_dict["pending_validation"], state_dict["should_stop"]
        self._resumed = True

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keeps the configured patience, which Lightning would overwrite with that of the checkpoint."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping) and (state := checkpoint["callbacks"].get(callback.state_key)):
                state["patience"] = callback.patience

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets Lightning's counters to the end of step k, independent of the position in its loop."""
        step = trainer.global_step
        loop = checkpoint["loops"]["fit_loop"]
        for place, count in (("epoch_loop.batch_progress", step * trainer.accumulate_grad_batches),
                             ("epoch_loop.val_loop.batch_progress", 0)):  # fmt: skip
            for progress in (loop[place]["total"], loop[place]["current"]):
                progress.update(dict.fromkeys(progress, count))
            loop[place]["is_last_batch"] = False
        for progress in (loop["epoch_progress"]["total"], loop["epoch_progress"]["current"]):
            progress.update({"ready": 1, "started": 1, "processed": 0, "completed": 0})
        # Lightning's x axis. If a validation is due, the loop passes this position again, and counts it.
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] = step - int(self._is_validation_due(trainer))

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Makes Lightning call its hooks even if all steps are done, for instance to load a moving average."""
        assert isinstance(pl_module, TrainingModule)
        check_metric("callbacks.checkpoints.monitor", self.monitor, validation_metrics(pl_module))
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        if self._resumed:
            trainer.fit_loop.epoch_loop.max_steps += 1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Runs the pending validation of the checkpoint, if there is one."""
        signals.catch_signals(*signals.STOPS)  # Lightning has just replaced the handlers
        self._saved_at = time.monotonic()
        if not self._resumed:
            return
        loop = trainer.fit_loop.epoch_loop
        loop.max_steps -= 1
        if self._pending_validation:
            self._pending_validation = False
            trainer.validating = True
            loop.val_loop.restarting = False
            loop.val_loop.run()
            trainer.training = True
        trainer.should_stop = trainer.should_stop or (self._should_stop and self.stays_stopped)
        if trainer.should_stop or trainer.global_step >= loop.max_steps:
            loop._batches_that_stepped = trainer.global_step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Saves a checkpoint if it is due, and ends the run if it is asked to end; called between two steps."""
        if batch_idx % trainer.accumulate_grad_batches:
            return
        if trainer.is_global_zero:
            check_held()
        agreement = self._agree(trainer) if trainer.world_size == 1 else self._agreement
        signum, is_time = (0, 0) if agreement is None else agreement.wait()[0].tolist()
        if (signum or is_time or self._is_due(trainer)) and trainer.global_step:
            self._save(trainer)
        if signum:
            self._end_all(trainer, signum)
        if trainer.world_size > 1:
            self._agreement = self._agree(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        """Ends the run during a validation, if it is asked to end."""
        # Several ranks may have different numbers of batches, so they cannot agree here, and finish the validation.
        signum = signals.received()
        if signum is None or trainer.world_size > 1 or trainer.sanity_checking:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, WeightAveraging):  # the module contains the average during a validation
                    callback.on_validation_epoch_end(trainer, pl_module)
            self._save(trainer, pending_validation=True)
        self._end(trainer, signum)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves a checkpoint if it is due, or if these weights are the best."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        check_metric("callbacks.checkpoints.monitor", self.monitor, list(trainer.callback_metrics))
        value = float(trainer.callback_metrics[self.monitor])
        is_best = value < self.best if self.mode == "min" else value > self.best
        if is_best:
            self.best, self.best_step = value, trainer.global_step
        if is_best or self._is_due(trainer) or trainer.should_stop:
            self._save(trainer, is_best=is_best)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves the last checkpoint, before a moving average replaces the weights."""
        self._save(trainer)
        signum, _ = self._agree(trainer).wait()[0].tolist()
        if signum:
            self._end_all(trainer, signum)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Waits until all checkpoints are written."""
        self.files.wait()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restores the signal handlers, which Lightning has replaced again."""
        signals.catch_signals(*signals.STOPS)

    on_test_start = on_validation_start

    def on_test_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        """Ends the run during the test, if it is asked to end; everything is saved already."""
        if trainer.is_global_zero:
            check_held()
        if (signum := signals.received()) is not None:
            self._end(trainer, signum)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Waits for pending writes, unless writing failed."""
        if not isinstance(exception, RunError):
            self.files.wait()

    def save(self, trainer: L.Trainer) -> None:
        """Saves a checkpoint between two steps, and returns when it is on disk."""
        self._save(trainer)
        self.files.wait()

    def _is_validation_due(self, trainer: L.Trainer) -> bool:
        every = trainer.val_check_interval
        batches = trainer.global_step * trainer.accumulate_grad_batches
        return trainer.enable_validation and isinstance(every, int) and batches % every == 0

    def _is_due(self, trainer: L.Trainer) -> bool:
        return self.every_n_steps is not None and trainer.global_step % self.every_n_steps == 0

    def _agree(self, trainer: L.Trainer) -> HostCopy:
        """Returns the signal, and whether a checkpoint is due by time, on any rank."""
        minutes = (time.monotonic() - self._saved_at) / 60
        is_time = self.every_n_minutes is not None and minutes >= self.every_n_minutes
        seen = torch.tensor([signals.received() or 0, int(is_time)])
        if trainer.world_size > 1:
            seen = copy_to_device(seen, trainer.strategy.root_device)
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        return HostCopy(seen)

    def _save(self, trainer: L.Trainer, *, is_best: bool = False, pending_validation: bool = False) -> None:
        step = trainer.global_step
        path = self.folder / f"step-{step:08d}.ckpt"
        is_new = self._saved != (step, pending_validation)
        if is_new:
            for logger in trainer.loggers:
                logger.save()
                if isinstance(logger, CSVLogger):
                    logger.sync()  # the log rows up to the checkpoint are on disk before it
            self._pending_validation, self._should_stop = pending_validation, trainer.should_stop
            trainer.save_checkpoint(path)
            self._pending_validation = False
            self._saved, self._saved_at = (step, pending_validation), time.monotonic()
        if trainer.is_global_zero and (is_new or is_best):
            self.files.after(lambda: self._publish(path, is_best=is_best))

    def _publish(self, path: Path, *, is_best: bool) -> None:
        link(path, self.folder / LAST)
        if is_best:
            link(path, self.folder / BEST)
        for old in step_files(self.folder)[self.keep :]:
            old.unlink()

    def _end_all(self, trainer: L.Trainer, signum: int) -> None:
        self.files.wait()
        trainer.strategy.barrier()  # if one rank exits, a scheduler ends the others, which may still write
        self._end(trainer, signum)

    def _end(self, trainer: L.Trainer, signum: int) -> None:
        self.files.wait()
        raise signals.Interruption(signum, trainer.global_step)


def check_metric(key: str, name: str, measured: Sequence[str]) -> None:
    """Raises an error if validation does not measure a metric.

    Args:
        key: configuration key that names the metric.
    """
    names = sorted(metric for metric in measured if metric.startswith("val/"))
    if name not in names:
        raise ConfigError(f"{key}={name}: expected one of {', '.join(names)}{nearest(name, names)}")


def validation_metrics(module: TrainingModule) -> list[str]:
    """Returns the names of the validation metrics of its task."""
    return [f"val/{name}" for name in module.metric_names("val")]


def step_files(folder: Path) -> list[Path]:
    """Returns the checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def newest_good(folder: Path) -> Path | None:
    """Returns the newest undamaged checkpoint; None: there are no checkpoints. Logs damaged ones.

    Raises:
        RunError: if all checkpoints are damaged.
    """
    files = step_files(folder) or [path for name in ("last", "best") if (path := folder / f"{name}.ckpt").exists()]
    for file in files:
        if (damage := damage_of(file)) is None:
            return file
        log.warning("%s is damaged and skipped: %s", file, damage)
    if files:
        raise RunError(f"{folder}: none of its {len(files)} checkpoints is whole; resume=never starts over")
    return None
