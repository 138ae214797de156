"""Sums over an evaluation that depend neither on the order of the batches nor on how these are dealt to processes."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric


class Sum(Metric):
    """The sum of the terms, exact, then rounded to float64."""

    terms: list[Tensor] | Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("terms", default=[], dist_reduce_fx="cat")

    @property
    def dtype(self) -> torch.dtype:
        """Of the terms. (Metric asks where a process has none.)"""
        return torch.float64

    def update(self, term: Tensor) -> None:
        """Adds a term.

        Args:
            term: a number.
        """
        assert isinstance(self.terms, list)
        self.terms.append(term.double().view(1))

    def compute(self) -> Tensor:
        """The sum."""
        terms = (term for part in self.terms for term in part.reshape(-1).tolist())
        return torch.tensor(math.fsum(terms), dtype=torch.float64)


class Mean(Sum):
    """The exact sum of totals, divided by the sum of what they are totals of."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | int) -> None:  # type: ignore[override]
        """Adds a batch.

        Args:
            total: a sum over the batch.
            count: its number of terms.
        """
        super().update(total)
        self.count += count

    def compute(self) -> Tensor:
        """The mean; NaN if there is nothing."""
        return super().compute() / self.count.cpu()
