"""Updates whose loss or gradient is not finite."""

from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.nn.transfer import Download


class NotFinite(ArithmeticError):
    """A loss or a gradient that is infinite or not a number. The weights are still those of the update before.

    Args:
        update: that it would have been, from 1.
        loss: of the update, in nats a scored label.
        norm: of its gradient.
    """

    def __init__(self, update: int, loss: float, norm: float) -> None:
        super().__init__(f"update {update}: the loss is {loss} and the norm of its gradient {norm}")
        self.update = update


class NotFiniteUpdates:
    """What becomes of updates that are not finite: an error, or they are left out and counted.

    A GPU that is asked about an update waits until it is told the next thing to do. So it can be asked later: while
    the next update is computed.

    Attributes:
        skips: whether they are left out.
        skipped: how many were.
    """

    def __init__(self, *, skips: bool) -> None:
        self.skips, self.skipped = skips, 0
        self._noted: tuple[int, Download] | None = None

    def add(self, update: int, loss: float, norm: float) -> None:
        """One more.

        Args:
            update: its number, from 1.
            loss: of the update, in nats a scored label.
            norm: of its gradient.

        Raises:
            NotFinite: it is not left out.
        """
        if not self.skips:
            raise NotFinite(update, loss, norm)
        self.skipped += 1

    def look_later(self, update: int, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> None:
        """Notes an update that may be one, after a look at the one before.

        Args:
            update: its number, from 1.
            loss: of the update, in nats a scored label.
            norm: of its gradient.

        Raises:
            NotFinite: the one before was not finite.
        """
        self.look()
        self._noted = update, Download(torch.stack((loss.float(), norm.float())))

    def look(self) -> None:
        """Looks at what was noted.

        Raises:
            NotFinite: it was not finite.
        """
        if self._noted is not None:
            (update, noted), self._noted = self._noted, None
            loss, norm = noted.wait()[0].tolist()
            if not isfinite(norm):
                self.add(update, loss, norm)
