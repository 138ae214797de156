"""Documents packed into one row, without padding between them.

Tested by tests/models/test_packed.py.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.nn.device_copy import copy_to_device


class PackedLayout:
    """The positions of the documents in a packed row.

    Args:
        lengths: lengths of the documents, in order.

    Attributes:
        longest: length of the longest document.
        numbers: index of the document at each position, from 0.
        positions: position within the document.
        starts: start of each document, and the end of the last one.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._shape = len(lengths), max(lengths, default=0)
        total, starts = sum(lengths), copy_to_device(torch.tensor([0, *accumulate(lengths)]), device)
        self._sizes = starts.diff()
        self.numbers = torch.arange(len(lengths), device=device).repeat_interleave(self._sizes, output_size=total)
        self.positions = torch.arange(total, device=device) - starts[self.numbers]
        self.starts = starts.to(torch.int32)
        self._slots = self.numbers * self.longest + self.positions  # in padded rows, one per document
        self._are_alike = total == len(lengths) * self.longest

    @property
    def longest(self) -> int:
        """Length of the longest document."""
        return self._shape[1]

    @property
    def mask(self) -> Bool[Tensor, "documents longest"] | None:
        """True at non-padding positions of ``padded``; None: no padding."""
        if self._are_alike:
            return None
        return torch.arange(self.longest, device=self._sizes.device) < self._sizes[:, None]

    def padded(self, x: Float[Tensor, "1 positions *width"]) -> Float[Tensor, "documents longest *width"]:
        """Returns one row per document, padded with zeros on the right."""
        (x,) = x
        if not self._are_alike:
            num_documents, longest = self._shape
            x = x.new_zeros(num_documents * longest, *x.shape[1:]).index_copy(0, self._slots, x)
        return x.reshape(*self._shape, *x.shape[1:])

    def packed(self, x: Float[Tensor, "documents longest *width"]) -> Float[Tensor, "1 positions *width"]:
        """Concatenates the documents again; the inverse of ``padded``."""
        x = x.flatten(0, 1)
        return (x if self._are_alike else x.index_select(0, self._slots))[None]
