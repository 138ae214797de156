"""Training new weights before all weights.

Tested by tests/assembly/test_init_from.py.
"""

import logging
from typing import Any

import lightning as L
import torch

from triptych.training.lightning_module import TrainingModule

log = logging.getLogger("triptych")


class FreezePretrained(L.Callback):
    """Trains only the weights that ``init_from`` did not load in the first steps.

    So a new head, or new cross-attention, does not degrade the pretrained weights (Zhang et al. 2025, T5Gemma, section
    3).

    Args:
        num_steps: number of these steps.

    Raises:
        ValueError: if ``num_steps`` is below 1.
    """

    def __init__(self, *, num_steps: int) -> None:
        if num_steps < 1:
            raise ValueError(f"callbacks.freeze_pretrained.num_steps={num_steps}: expected at least 1")
        self.num_steps, self._new = num_steps, list[str]()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stores the names of the new weights."""
        assert isinstance(pl_module, TrainingModule)
        self._new = self._new or sorted(pl_module.new_weights)
        if not self._new:
            log.warning(
                "callbacks.freeze_pretrained: init_from brought all weights, or is null; all are trained at once"
            )

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Removes the gradients of the other weights, which the optimizer then skips."""
        if self._new and trainer.global_step < self.num_steps:
            for name, parameter in pl_module.network.named_parameters():  # type: ignore[union-attr]
                if name not in self._new:
                    parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the names of the new weights, since a resumed run does not need ``init_from``."""
        return {"new": self._new}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._new = state_dict["new"]
