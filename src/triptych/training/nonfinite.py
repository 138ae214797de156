"""Steps whose loss or gradient is not finite.

Tested by tests/tasks/test_task.py.
"""

from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.nn.device_copy import HostCopy


class NonFiniteError(ArithmeticError):
    """A loss or gradient that is infinite or NaN; the weights are still those of the previous step.

    Args:
        step: number of the step, from 1.
        loss: loss of the step, in nats per target label.
        norm: norm of its gradient.
    """

    def __init__(self, step: int, loss: float, norm: float) -> None:
        super().__init__(f"step {step}: the loss is {loss} and the norm of its gradient {norm}")
        self.step = step


class NonFiniteSteps:
    """The handling of steps that are not finite: an error, or they are skipped and counted.

    Reading the result of a step synchronizes with the GPU, so the check can be delayed until the next step is computed.

    Attributes:
        skips: whether such steps are skipped.
        skipped: number of skipped steps.
    """

    def __init__(self, *, skips: bool) -> None:
        self.skips, self.skipped = skips, 0
        self._noted: tuple[int, HostCopy] | None = None

    def add(self, step: int, loss: float, norm: float) -> None:
        """Counts a step that is not finite.

        Args:
            step: number of the step, from 1.
            loss: loss of the step, in nats per target label.
            norm: norm of its gradient.

        Raises:
            NonFiniteError: if such steps are not skipped.
        """
        if not self.skips:
            raise NonFiniteError(step, loss, norm)
        self.skipped += 1

    def look_later(self, step: int, loss: Float[Tensor, ""], norm: Float[Tensor, ""]) -> None:
        """Records a step for a later check, after checking the previous one.

        Args:
            step: number of the step, from 1.
            loss: loss of the step, in nats per target label.
            norm: norm of its gradient.

        Raises:
            NonFiniteError: if the previous step was not finite.
        """
        self.look()
        self._noted = step, HostCopy(torch.stack((loss.float(), norm.float())))

    def look(self) -> None:
        """Checks the recorded step.

        Raises:
            NonFiniteError: if it is not finite and such steps are not skipped.
        """
        if self._noted is not None:
            (step, noted), self._noted = self._noted, None
            loss, norm = noted.wait()[0].tolist()
            if not isfinite(norm):
                self.add(step, loss, norm)
