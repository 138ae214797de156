"""Tells of sudden rises of the loss."""

import logging
from statistics import median
from typing import Any

import lightning as L
import torch
from torch import Tensor

from triptych.data import Batch, DataModule

log = logging.getLogger("triptych")


class SpikeReport(L.Callback):
    """Reports an update whose loss is far above what was usual, with the examples that it read.

    Far is ``threshold`` times the median absolute deviation above the median of the last ``window`` updates. The losses
    are looked at whenever Lightning logs, so that a GPU need not wait for them at each update.

    Args:
        threshold: how far is far.
        window: updates that are remembered.

    Attributes:
        spikes: the updates, from 1.
    """

    def __init__(self, *, threshold: float, window: int) -> None:
        self.threshold, self.window = threshold, window
        self.spikes: list[int] = []
        self._usual: list[float] = []
        self._pending: list[Tensor] = []  # a loss for each batch since the last look

    def state_dict(self) -> dict[str, Any]:
        """What was usual, and what was not looked at yet."""
        pending = torch.stack(self._pending).tolist() if self._pending else []
        return {"spikes": self.spikes, "usual": self._usual, "pending": pending}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        self.spikes, self._usual = state_dict["spikes"], state_dict["usual"]
        self._pending = [torch.tensor(loss) for loss in state_dict["pending"]]

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Takes the loss; looks at those that there are when Lightning logs."""
        self._pending.append(outputs["loss"])
        accumulate, step = trainer.accumulate_grad_batches, trainer.global_step
        if (batch_idx + 1) % accumulate or step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        losses = torch.stack([loss.to(pl_module.device) for loss in self._pending]).view(-1, accumulate).sum(1).tolist()
        self._pending = []
        for update, loss in enumerate(losses, step - len(losses) + 1):
            if len(self._usual) == self.window:
                center = median(self._usual)
                deviation = median(abs(usual - center) for usual in self._usual)
                if loss > center + self.threshold * deviation:
                    self._report(trainer, update, loss, center)
            self._usual = [*self._usual, loss][-self.window :]

    def _report(self, trainer: L.Trainer, update: int, loss: float, center: float) -> None:
        self.spikes.append(update)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, DataModule)
        if trainer.is_global_zero:
            log.warning(
                "update %s: the loss rose to %.4g, where %.4g was usual; it read %s",
                update,
                loss,
                center,
                data.describe_update(update),
            )
