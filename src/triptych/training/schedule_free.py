"""The optimizer of ``schedulefree``, an optional dependency, and the handling of its two sets of weights.

Tested by tests/training/test_optimizers.py.
"""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from schedulefree import AdamWScheduleFree  # type: ignore[import-untyped]
from torch import Tensor

from triptych.training.checkpoint_file import copied


class ScheduleFree(AdamWScheduleFree):  # type: ignore[misc]
    """The AdamW of the library, which skips a step without gradients instead of counting it."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Performs an optimizer step."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if any(p.grad is not None for group in self.param_groups for p in group["params"]):
            super().step()
        return loss


class AverageOfOptimizer(L.Callback):
    """Validates, tests and saves the average of a schedule-free optimizer.

    The trained weights are restored bit by bit, so that neither validation nor checkpoints change them; the conversion
    of the library rounds.

    In a checkpoint, ``state_dict`` is the average, and ``current_model_state`` the weights that training continues
    with."""

    def __init__(self) -> None:
        self._trained: list[Tensor] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copies the average into the network. (FSDP gathers it afterwards.)"""
        if trainer.state.fn == TrainerFn.FITTING:
            self._put_average(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restores the trained weights."""
        self._put_back(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Saves both sets of weights, and leaves the trained ones. (A validation that this interrupts has ended.)"""
        self._put_back(trainer)
        checkpoint["current_model_state"] = trainer.strategy.lightning_module_state_dict()
        self._put_average(trainer)
        checkpoint["state_dict"] = copied(trainer.strategy.lightning_module_state_dict())
        self._put_back(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leaves the average in the network."""
        optimizer_of(trainer).eval()

    def _put_average(self, trainer: L.Trainer) -> None:
        optimizer = optimizer_of(trainer)
        self._trained = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
        optimizer.eval()

    @torch.no_grad()
    def _put_back(self, trainer: L.Trainer) -> None:
        if not self._trained:
            return
        optimizer = optimizer_of(trainer)
        optimizer.train()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, trained in zip(parameters, self._trained, strict=True):
            parameter.copy_(trained)
        self._trained = []


def optimizer_of(trainer: L.Trainer) -> ScheduleFree:
    """Returns the only optimizer of the trainer."""
    (optimizer,) = trainer.optimizers
    assert isinstance(optimizer, ScheduleFree)
    return optimizer
