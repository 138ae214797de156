"""Trains what is new beside pre-trained weights, before it trains all."""

import logging
from typing import Any

import lightning as L
import torch

from triptych.training.lightning_module import TrainingModule

log = logging.getLogger("triptych")


class NewWeightsFirst(L.Callback):
    """In the first updates only the weights that ``init_from`` did not bring are trained: a new head, or new
    cross-attention, does not spoil the others meanwhile (Zhang et al. 2025, T5Gemma, section 3).

    Args:
        num_steps: so many updates.

    Raises:
        ValueError: no update.
    """

    def __init__(self, *, num_steps: int) -> None:
        if num_steps < 1:
            raise ValueError(f"callbacks.new_weights_first.num_steps={num_steps}: expected at least 1")
        self.num_steps, self._new = num_steps, list[str]()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remembers what is new."""
        assert isinstance(pl_module, TrainingModule)
        self._new = self._new or sorted(pl_module.new_weights)
        if not self._new:
            log.warning(
                "callbacks.new_weights_first: init_from brought all weights, or is null; all are trained at once"
            )

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Takes the gradients of the others away: the optimizer leaves out what has none."""
        if self._new and trainer.global_step < self.num_steps:
            for name, parameter in pl_module.network.named_parameters():  # type: ignore[union-attr]
                if name not in self._new:
                    parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """What is new, for a run that goes on needs no ``init_from``."""
        return {"new": self._new}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._new = state_dict["new"]
