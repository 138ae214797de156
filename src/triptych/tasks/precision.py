"""The numerical precision of a task.

Tested by tests/planning/test_peak_memory.py and tests/test_evaluate.py.
"""

from dataclasses import dataclass

import torch
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, MixedPrecision
from lightning.pytorch.plugins import Precision as SinglePrecision


@dataclass(frozen=True, slots=True)
class Precision:
    """The floating-point types of a run.

    Attributes:
        dtype: type of the weights, their gradients, and the states between blocks.
        products: type of the inputs and outputs of matrix products; under autocast it has fewer bytes than dtype.
    """

    dtype: torch.dtype
    products: torch.dtype

    @property
    def compute(self) -> int:
        """Bytes per number of type ``products``."""
        return self.products.itemsize

    @property
    def weight(self) -> int:
        """Bytes per number of type ``dtype``."""
        return self.dtype.itemsize

    @property
    def is_mixed(self) -> bool:
        """Whether autocast copies the inputs of matrix products."""
        return self.weight != self.compute

    @property
    def single(self) -> int:
        """Bytes per number of the loss and of statistics, which have at least float32."""
        return max(self.weight, 4)


PRECISIONS = {
    "32-true": Precision(torch.float32, torch.float32),
    "bf16-mixed": Precision(torch.float32, torch.bfloat16),
    "16-mixed": Precision(torch.float32, torch.float16),
    "64-true": Precision(torch.float64, torch.float64),
    "bf16-true": Precision(torch.bfloat16, torch.bfloat16),
    "16-true": Precision(torch.float16, torch.float16),
}
"""Precisions by the value of ``trainer.precision``."""


def arithmetic(precision: str, device: torch.device) -> SinglePrecision:
    """Returns Lightning's precision plugin, to convert a network (``convert_module``) and run it (``forward_context``).

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
