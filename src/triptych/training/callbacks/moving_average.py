"""A moving average of the weights."""

import logging
from collections.abc import Callable

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

log = logging.getLogger("triptych")


class MovingAverage(WeightAveraging):
    """Validates, tests and saves an exponential moving average of the weights W, whose decay warms up:

    A_1 = W_1, A_(t+1) = d_t A_t + (1 - d_t) W_(t+1), d_t = min(decay, (1 + t) / (10 + t)).

    As long as the decay warms up, the average is about that of the last ninth of the updates so far, however long the
    training is; after that, of the last 1 / (1 - decay) updates. With a constant decay of 0.999, 400 updates would keep
    two thirds of the weights of the first one. (The warm-up is that of TensorFlow's ExponentialMovingAverage.)

    Args:
        decay: the largest.

    Raises:
        ValueError: a decay that is none.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: expected at least 0 and less than 1")
        # Buffers are tables of positions; averaging them again and again would round them away.
        super().__init__(use_buffers=False, multi_avg_fn=average_with(decay))
        self.decay = decay

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Says which weights are validated and tested."""
        log.info(
            "validated, tested and saved: a moving average of the weights, decay min(%s, (1 + t) / (10 + t)) after t "
            "updates",
            self.decay,
        )


def average_with(decay: float) -> Callable[[list[Tensor], list[Tensor], Tensor], None]:
    """How averages move on: A <- d A + (1 - d) W, d = min(decay, (1 + t) / (10 + t)) where t updates are in A.

    Args:
        decay: the largest.
    """

    @torch.no_grad()
    def average(averages: list[Tensor], weights: list[Tensor], num_averaged: Tensor) -> None:
        t = int(num_averaged)
        get_ema_multi_avg_fn(min(decay, (1 + t) / (10 + t)))(averages, weights, num_averaged)  # type: ignore[no-untyped-call]

    return average
