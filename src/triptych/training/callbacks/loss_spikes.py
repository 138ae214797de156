"""Reporting loss spikes."""

import logging
import math
from itertools import count
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from triptych.data import Batch, DataModule

log = logging.getLogger("triptych")

NUM_LIKE = 10
"""Number of steps that a step is compared with: those whose examples are closest in size."""
NEAREST = 0.1
"""Maximum relative difference of sizes that are compared: short texts are harder, or easier, than long ones."""
SMALL = 0.3
"""Fraction of the mean loss that is added to losses, so that rises far below it are small."""
LEAST = math.log(2)
"""Minimum rise of a spike."""
FIRST = 100
"""Number of rises that must be known before a report."""
PAUSE = 10
"""Number of steps after a report that belong to the same spike."""


class LossSpikeMonitor(L.Callback):
    """Reports a step whose loss is far above the usual loss for examples of its size, and names its examples.

    Batches contain examples of similar size, and short ones may be ambiguous. So a step is compared with those
    ``NUM_LIKE`` of the last ``window`` steps whose examples have the most similar mean size. With m, the median of
    their losses, its rise is log((loss + s) / (m + s)), where s is ``SMALL`` times the mean loss of the window: a rise
    from 0.001 to 0.02 does not matter if the mean is 0.2. A spike is a rise of at least ``LEAST`` that is ``factor``
    times as high as all but one in the window. So the threshold is higher if the losses vary more, and one early
    outlier does not hide other spikes.

    The losses are read when Lightning logs, to avoid synchronizing with the GPU at each step.

    Args:
        factor: minimum ratio of a spike to the other rises in the window.
        window: number of steps to compare with.

    Attributes:
        spikes: steps with a spike, from 1.
    """

    def __init__(self, *, factor: float, window: int) -> None:
        self.factor, self.window = factor, window
        self.spikes: list[int] = []
        self._sizes, self._losses, self._rises = np.empty(0), np.empty(0), np.empty(0)  # of the last steps
        self._pending: list[tuple[Tensor, int, int]] = []  # loss, tokens and examples of each batch since the check

    def state_dict(self) -> dict[str, Any]:
        """Returns the recent losses, and the losses that are not checked yet."""
        pending = [(float(loss), tokens, examples) for loss, tokens, examples in self._pending]
        last = {"sizes": self._sizes.tolist(), "losses": self._losses.tolist(), "rises": self._rises.tolist()}
        return {"spikes": self.spikes, "pending": pending, **last}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self.spikes = state_dict["spikes"]
        self._sizes, self._losses, self._rises = (np.array(state_dict[key]) for key in ("sizes", "losses", "rises"))
        self._pending = [(torch.tensor(loss), tokens, examples) for loss, tokens, examples in state_dict["pending"]]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Stores the loss; checks all stored losses when Lightning logs."""
        self._pending.append((outputs["loss"], batch.num_nonpadding, len(batch.examples)))
        accumulate, step = trainer.accumulate_grad_batches, trainer.global_step
        if (batch_idx + 1) % accumulate or step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        parts, tokens, examples = zip(*self._pending, strict=True)
        self._pending = []
        losses = torch.stack([loss.to(pl_module.device) for loss in parts]).view(-1, accumulate).sum(1).tolist()
        sizes = np.reshape(tokens, (-1, accumulate)).sum(1) / np.reshape(examples, (-1, accumulate)).sum(1).clip(1)
        for number, loss, size in zip(count(step - len(losses) + 1), losses, sizes.tolist()):
            if (usual := self.look(number, loss, size)) is not None and trainer.is_global_zero:
                data: Any = trainer.datamodule  # type: ignore[attr-defined]
                assert isinstance(data, DataModule)
                what = "step %s: the loss rose to %.4g; %.4g is usual for examples of this size. Examples: %s"
                log.warning(what, number, loss, usual, data.describe_step(number))

    def look(self, step: int, loss: float, size: float) -> float | None:
        """Checks the loss of a step, and stores it unless it is a spike.

        Args:
            step: number of the step, from 1.
            size: mean number of tokens of its examples.

        Returns:
            The usual loss for examples of this size, if the loss is a spike, else None.
        """
        if not math.isfinite(loss):  # a skipped step, counted elsewhere
            return None
        rise, usual = self._rise(loss, size)
        if rise is not None and len(self._rises) >= FIRST:
            is_far = rise > max(LEAST, self.factor * np.sort(self._rises)[-2])
            if is_far and not (self.spikes and step - self.spikes[-1] <= PAUSE):
                self.spikes.append(step)
                return usual
        self._sizes, self._losses = (
            np.append(old, new)[-self.window :] for old, new in ((self._sizes, size), (self._losses, loss))
        )
        if rise is not None:
            self._rises = np.append(self._rises, rise)[-self.window :]
        return None

    def _rise(self, loss: float, size: float) -> tuple[float | None, float]:
        """Returns the rise of a loss above the usual loss for its size, and the latter; None: too few to compare."""
        if len(self._sizes) < NUM_LIKE:
            return None, math.nan
        distances = np.abs(self._sizes[::-1] - size)  # if equally close, the latest
        like = np.argsort(distances, kind="stable")[:NUM_LIKE]
        if distances[like[-1]] > NEAREST * size:
            return None, math.nan
        usual = float(np.median(self._losses[::-1][like]))
        small = SMALL * float(self._losses.mean()) + np.finfo(float).tiny  # not 0
        return math.log((loss + small) / (usual + small)), usual
