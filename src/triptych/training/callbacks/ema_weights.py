"""A moving average of the weights."""

import logging
from itertools import chain

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

log = logging.getLogger("triptych")


class EMAWeights(WeightAveraging):
    """Validates, tests and saves an exponential moving average of the weights W with a decay warmup.

    A_1 = W_1, A_(t+1) = d_t A_t + (1 - d_t) W_(t+1), d_t = min(decay, (1 + t) / (10 + t)).

    During the warmup, the average covers about the last ninth of the steps so far, independent of the length of the
    run; after that, the last 1 / (1 - decay) steps. With a constant decay of 0.999, the average after 400 steps would
    still be two thirds of the weights of the first step. (The warmup is that of TensorFlow's ExponentialMovingAverage.)

    The average is at least in float32: in 16 bits, a change of (1 - d) would be rounded to 0. It is rounded to the type
    of the weights when it replaces them.

    Args:
        decay: maximum decay.

    Raises:
        ValueError: if the decay is out of range.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: expected at least 0 and less than 1")
        # Buffers are position tables; repeated averaging would accumulate rounding errors.
        super().__init__(use_buffers=False)
        self.decay = decay
        self._trained: list[Tensor] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs which weights are validated and tested."""
        decay = f"min({self.decay}, (1 + t) / (10 + t))"
        log.info("validated, tested and saved: a moving average of the weights, decay %s after t updates", decay)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        """Updates the average after a step. (The version of Lightning and PyTorch does not support float16.)"""
        if trainer.global_step > self._latest_update_step:
            assert self._average_model is not None
            update_average(self._average_model, pl_module, self.decay)
            self._latest_update_step = trainer.global_step

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copies the average into the network. (Lightning swaps both, which would round the average, too.)"""
        if self._average_model is not None:
            self._trained = [tensor.detach().clone() for tensor in chain(pl_module.parameters(), pl_module.buffers())]
            self._copy_average_to_current(pl_module)

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restores the trained weights."""
        for tensor, trained in zip(chain(pl_module.parameters(), pl_module.buffers()), self._trained, strict=False):
            tensor.copy_(trained)
        self._trained = []


@torch.no_grad()
def update_average(average: AveragedModel, model: nn.Module, decay: float) -> None:
    """Sets A <- d A + (1 - d) W, d = min(decay, (1 + t) / (10 + t)), t being the steps in A; for t = 0, A <- W.

    Args:
        average: A, on any device.
        model: model with the weights W, in the same or a narrower type.
        decay: maximum decay.
    """
    t = int(average.n_averaged)
    averages: list[Tensor] = list(average.module.parameters())
    weights = [weight.to(mean) for weight, mean in zip(model.parameters(), averages, strict=True)]
    torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + t) / (10 + t)) if t else 1.0)
    for copy, buffer in zip(average.module.buffers(), model.buffers(), strict=True):
        copy.copy_(buffer)
    average.n_averaged += 1
