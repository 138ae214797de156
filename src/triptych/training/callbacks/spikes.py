"""Tells of sudden rises of the loss."""

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
"""Updates that one is compared with: those whose examples are closest in size."""
NEAREST = 0.1
"""Sizes that differ by more than this share are not compared: short texts are harder, or easier, than long ones."""
SMALL = 0.3
"""Rises that are small beside this share of the mean loss are small."""
LEAST = math.log(2)
"""The least rise of a spike."""
FIRST = 100
"""Nothing is reported before so many rises are known."""
PAUSE = 10
"""Updates after a report that belong to it."""


class SpikeReport(L.Callback):
    """Reports an update whose loss is far above what is usual for examples of its size, and names its examples.

    Batches hold examples of like size, and what is short may be ambiguous: so an update is compared with those
    ``NUM_LIKE`` of the last ``window`` whose examples have the most similar mean size. With m, the median of their
    losses, its rise is log((loss + s) / (m + s)), where s is ``SMALL`` times the mean loss of the window: a rise from
    0.001 to 0.02 does not matter where the mean is 0.2. A spike is a rise of at least ``LEAST`` that is ``factor``
    times as high as all but one in the window: so it takes more where losses scatter more, and a single outlier from
    the beginning hides no other.

    The losses are looked at whenever Lightning logs, so that a GPU need not wait for them at each update.

    Args:
        factor: how many times as high.
        window: updates that are remembered.

    Attributes:
        spikes: the updates, from 1.
    """

    def __init__(self, *, factor: float, window: int) -> None:
        self.factor, self.window = factor, window
        self.spikes: list[int] = []
        self._sizes, self._losses, self._rises = np.empty(0), np.empty(0), np.empty(0)  # of the last updates
        self._pending: list[tuple[Tensor, int, int]] = []  # loss, tokens and examples of each batch since the last look

    def state_dict(self) -> dict[str, Any]:
        """What was usual, and what was not looked at yet."""
        pending = [(float(loss), tokens, examples) for loss, tokens, examples in self._pending]
        last = {"sizes": self._sizes.tolist(), "losses": self._losses.tolist(), "rises": self._rises.tolist()}
        return {"spikes": self.spikes, "pending": pending, **last}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.spikes = state_dict["spikes"]
        self._sizes, self._losses, self._rises = (np.array(state_dict[key]) for key in ("sizes", "losses", "rises"))
        self._pending = [(torch.tensor(loss), tokens, examples) for loss, tokens, examples in state_dict["pending"]]

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Takes the loss; looks at those that there are when Lightning logs."""
        self._pending.append((outputs["loss"], batch.num_real, len(batch.examples)))
        accumulate, step = trainer.accumulate_grad_batches, trainer.global_step
        if (batch_idx + 1) % accumulate or step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        parts, tokens, examples = zip(*self._pending, strict=True)
        self._pending = []
        losses = torch.stack([loss.to(pl_module.device) for loss in parts]).view(-1, accumulate).sum(1).tolist()
        sizes = np.reshape(tokens, (-1, accumulate)).sum(1) / np.reshape(examples, (-1, accumulate)).sum(1).clip(1)
        for update, loss, size in zip(count(step - len(losses) + 1), losses, sizes.tolist()):
            if (usual := self.look(update, loss, size)) is not None and trainer.is_global_zero:
                data: Any = trainer.datamodule  # type: ignore[attr-defined]
                assert isinstance(data, DataModule)
                read = data.describe_update(update)
                what = "update %s: the loss rose to %.4g, where %.4g is usual for examples of this size; it read %s"
                log.warning(what, update, loss, usual, read)

    def look(self, update: int, loss: float, size: float) -> float | None:
        """Remembers the loss of an update, but for that of a spike.

        Args:
            update: its number, from 1.
            size: tokens of an example of it, in the mean.

        Returns:
            What is usual for examples of this size, if the loss is a spike.
        """
        if not math.isfinite(loss):  # an update that is left out, and counted elsewhere
            return None
        rise, usual = self._rise(loss, size)
        if rise is not None and len(self._rises) >= FIRST:
            is_far = rise > max(LEAST, self.factor * np.sort(self._rises)[-2])
            if is_far and not (self.spikes and update - self.spikes[-1] <= PAUSE):
                self.spikes.append(update)
                return usual
        self._sizes, self._losses = (
            np.append(old, new)[-self.window :] for old, new in ((self._sizes, size), (self._losses, loss))
        )
        if rise is not None:
            self._rises = np.append(self._rises, rise)[-self.window :]
        return None

    def _rise(self, loss: float, size: float) -> tuple[float | None, float]:
        """How far a loss is above what is usual for its size, and that; None: there is too little to compare with."""
        if len(self._sizes) < NUM_LIKE:
            return None, math.nan
        distances = np.abs(self._sizes[::-1] - size)  # of equally close ones the latest
        like = np.argsort(distances, kind="stable")[:NUM_LIKE]
        if distances[like[-1]] > NEAREST * size:
            return None, math.nan
        usual = float(np.median(self._losses[::-1][like]))
        small = SMALL * float(self._losses.mean()) + np.finfo(float).tiny  # not 0
        return math.log((loss + small) / (usual + small)), usual
