"""Sums over an evaluation that depend neither on the batch order nor on the distribution of batches to processes."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torchmetrics import Metric

WITHOUT_FLOAT64 = ("mps",)
"""Device types without float64: Apple GPUs."""


def widest(device: torch.device) -> torch.dtype:
    """Returns the most precise floating-point type of a device."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


class ExactSum(Metric):
    """The exact sum of the terms, rounded to float64; terms stay on the device, as NCCL does not gather from CPUs."""

    terms: list[Tensor] | Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("terms", default=[], dist_reduce_fx="cat")

    @property
    def dtype(self) -> torch.dtype:
        """The type of the terms. (``Metric`` reads it if a process has none.)"""
        return widest(self.device)

    def update(self, term: Tensor | float) -> None:
        """Adds a term."""
        assert isinstance(self.terms, list)
        self.terms.append(torch.as_tensor(term, dtype=self.dtype, device=self.device).view(1))

    def compute(self) -> Tensor:
        """Returns the sum."""
        return torch.tensor(math.fsum(self._numbers()), dtype=torch.float64)

    def _numbers(self) -> list[float]:
        return [term for part in self.terms for term in part.reshape(-1).tolist()]


class ExactMean(ExactSum):
    """The exact sum of totals, divided by the sum of their counts."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, total: Tensor | float, count: Tensor | int) -> None:  # type: ignore[override]
        """Adds a batch.

        Args:
            total: sum over the batch.
            count: number of its terms.
        """
        super().update(total)
        self.count += count

    def compute(self) -> Tensor:
        """Returns the mean; NaN if there are no terms."""
        return super().compute() / self.count.cpu()


class PairStatistic(ExactSum):
    """A function of all pairs (x, y) of an evaluation, in float64.

    The function gets the pairs in ascending order, so the value does not depend on the order of arrival.

    Args:
        function: computes the value from all x and all y.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def update(self, x: Float[Tensor, " pairs"], y: Shaped[Tensor, " pairs"]) -> None:  # type: ignore[override]
        """Adds pairs."""
        assert isinstance(self.terms, list)
        pairs = torch.stack((x.to(self.device, self.dtype), y.to(self.device, self.dtype)), dim=1)
        self.terms.append(pairs.flatten())

    def compute(self) -> Tensor:
        """Returns the value of the function; NaN if there are no pairs."""
        pairs = sorted(zip(*[iter(self._numbers())] * 2, strict=True))
        return self._function(*torch.tensor(pairs, dtype=torch.float64).T) if pairs else torch.tensor(math.nan)
