"""Documents that stand one after the other in one row, without padding between them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Documents:
    """Where each document of a packed row stands.

    Args:
        lengths: positions of the documents, in their order.

    Attributes:
        longest: positions of the longest.
        positions: the place of each position in its own document.
        starts: where the documents start, and where the last one ends.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._shape = len(lengths), max(lengths, default=0)
        sums = [0, *accumulate(lengths)]
        sizes, starts = torch.tensor(lengths, dtype=torch.long), torch.tensor(sums)
        numbers = torch.arange(len(lengths)).repeat_interleave(sizes, output_size=sums[-1])
        positions = torch.arange(sums[-1]) - starts[numbers]
        self.positions, self.starts = positions.to(device), starts.to(device, torch.int32)
        self._slots = (numbers * self.longest + positions).to(device)  # in rows of their own, padded
        self._sizes = sizes.to(device)
        self._are_alike = len(positions) == len(lengths) * self.longest

    @property
    def longest(self) -> int:
        """Positions of the longest document."""
        return self._shape[1]

    @property
    def mask(self) -> Bool[Tensor, "documents longest"] | None:
        """True where ``padded`` is real; None: all of it is."""
        if self._are_alike:
            return None
        return torch.arange(self.longest, device=self._sizes.device) < self._sizes[:, None]

    def padded(self, x: Float[Tensor, "1 positions *width"]) -> Float[Tensor, "documents longest *width"]:
        """A row for each document; zeros stand behind the shorter ones."""
        (x,) = x
        if not self._are_alike:
            num_documents, longest = self._shape
            x = x.new_zeros(num_documents * longest, *x.shape[1:]).index_copy(0, self._slots, x)
        return x.reshape(*self._shape, *x.shape[1:])

    def packed(self, x: Float[Tensor, "documents longest *width"]) -> Float[Tensor, "1 positions *width"]:
        """The documents one after the other: undoes ``padded``."""
        x = x.flatten(0, 1)
        return (x if self._are_alike else x.index_select(0, self._slots))[None]
