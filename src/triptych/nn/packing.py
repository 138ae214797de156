"""Documents that stand one after the other in one row, without padding between them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.nn.transfer import upload


class Documents:
    """Where each document of a packed row stands.

    Args:
        lengths: positions of the documents, in their order.

    Attributes:
        longest: positions of the longest.
        numbers: the document of each position, from 0.
        positions: the place of each position in its own document.
        starts: where the documents start, and where the last one ends.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._shape = len(lengths), max(lengths, default=0)
        total, starts = sum(lengths), upload(torch.tensor([0, *accumulate(lengths)]), device)
        self._sizes = starts.diff()
        self.numbers = torch.arange(len(lengths), device=device).repeat_interleave(self._sizes, output_size=total)
        self.positions = torch.arange(total, device=device) - starts[self.numbers]
        self.starts = starts.to(torch.int32)
        self._slots = self.numbers * self.longest + self.positions  # in rows of their own, padded
        self._are_alike = total == len(lengths) * self.longest

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
