"""Where and in which precision a task computes."""

from dataclasses import dataclass

import torch
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision
from lightning.pytorch.plugins import Precision as SinglePrecision

from triptych.config import ConfigError, one_of
from triptych.config.schema import ACCELERATORS


@dataclass(frozen=True, slots=True)
class Precision:
    """The types of a training.

    Attributes:
        dtype: of the weights, their gradients, and what goes from block to block.
        products: of what the matrix products read and write; under autocast it has fewer bytes than dtype.
    """

    dtype: torch.dtype
    products: torch.dtype

    @property
    def compute(self) -> int:
        """Bytes of a number of ``products``."""
        return self.products.itemsize

    @property
    def weight(self) -> int:
        """Bytes of a number of ``dtype``."""
        return self.dtype.itemsize

    @property
    def is_mixed(self) -> bool:
        """Whether autocast copies what the matrix products read."""
        return self.weight != self.compute

    @property
    def single(self) -> int:
        """Bytes of a number of the loss and of statistics, which have at least float32."""
        return max(self.weight, 4)


PRECISIONS = {
    "32-true": Precision(torch.float32, torch.float32),
    "bf16-mixed": Precision(torch.float32, torch.bfloat16),
    "16-mixed": Precision(torch.float32, torch.float16),
    "64-true": Precision(torch.float64, torch.float64),
    "bf16-true": Precision(torch.bfloat16, torch.bfloat16),
    "16-true": Precision(torch.float16, torch.float16),
}
"""By what ``trainer.precision`` calls them."""


def device_for(accelerator: str) -> torch.device:
    """The device that a model which is trained already is used on.

    Args:
        accelerator: ``trainer.accelerator``: auto (the GPU if there is one, else the CPU), cpu, gpu, cuda or mps.

    Raises:
        ConfigError: a GPU where there is none, or none of these.
    """
    if accelerator not in ACCELERATORS:
        raise ConfigError(f"trainer.accelerator={accelerator}: {one_of(accelerator, ACCELERATORS)}")
    if accelerator != "cpu" and accelerator != "mps" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if accelerator in ("gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if accelerator in ("auto", "cpu"):
        return torch.device("cpu")
    raise ConfigError(f"trainer.accelerator={accelerator}: there is none here; expected auto or cpu")


def arithmetic(precision: str, device: torch.device) -> SinglePrecision:
    """What Lightning's trainer computes with: its ``convert_module`` gives a network the type of its weights, and the
    network computes within its ``forward_context``.

    Args:
        precision: ``trainer.precision``.
    """
    number, _, kind = precision.partition("-")
    if number == "64":
        return DoublePrecision()
    if number not in ("16", "bf16"):
        return SinglePrecision()
    if kind == "true":
        return HalfPrecision("16-true" if number == "16" else "bf16-true")
    return MixedPrecision("16-mixed" if number == "16" else "bf16-mixed", device.type)
