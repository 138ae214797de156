"""Sliding-window attention: the mask of a window, and the blocks that make it fast. ``attend`` computes it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Shaped
from torch import Tensor

LEAST_BLOCK = 32
"""Minimum number of queries in a block of ``SlidingWindowBlocks``; kernels are slow on smaller blocks."""
LEAST_BLOCKS = 4
"""Number of blocks from which on they take less time than one mask of all pairs (measured on a CPU)."""


@dataclass(frozen=True, slots=True)
class SlidingWindowBlocks:
    """Windowed attention within one text, in blocks, at a cost of O(length window).

    Block i has the queries i b, ..., i b + b - 1 and the keys from i b - w to i b + b - 1, or without causality to
    i b + b + w - 1; b = max(w, ``LEAST_BLOCK``). Keys outside of the text are masked. Beltagy et al. 2020 (Longformer),
    section 3.1; the blocks are those of appendix A.

    Attributes:
        window: w, the distance a query attends to, itself included.
        causal: whether a query attends only to itself and earlier keys.
        length: length of the text.
        key_mask: True at non-padding keys, False at padding; None: no padding.
    """

    window: int
    causal: bool
    length: int
    key_mask: Bool[Tensor, "batch length"] | None = None

    @property
    def is_worthwhile(self) -> bool:
        """Whether the text is long enough, relative to the window, for blocks to be faster."""
        return self.length >= LEAST_BLOCKS * self.queries

    @property
    def queries(self) -> int:
        """Number of queries in a block: b."""
        return max(self.window, LEAST_BLOCK)

    @property
    def keys(self) -> int:
        """Number of keys in a block."""
        return self.queries + self.window * (1 if self.causal else 2)

    @property
    def blocks(self) -> int:
        """Number of blocks; the last may extend beyond the text."""
        return -(-self.length // self.queries)

    @property
    def pairs(self) -> int:
        """Number of query-key pairs in all blocks."""
        return self.blocks * self.queries * self.keys

    def mask(self, device: torch.device) -> Bool[Tensor, "#batch blocks queries keys"]:
        """Visible(r, s) = real(i b - w + s) and 0 < s - r < 2 w, or <= w if causal: query r and key s of block i."""
        pairs = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device)
        pairs = pairs.triu(1).tril(self.window if self.causal else 2 * self.window - 1)
        real = torch.ones(1, self.length, dtype=torch.bool, device=device) if self.key_mask is None else self.key_mask
        return self.keys_of(real[..., None])[..., 0][:, :, None, :] & pairs

    def queries_of(self, x: Shaped[Tensor, "*rows length width"]) -> Shaped[Tensor, "*rows blocks queries width"]:
        """Returns the queries of each block, padded with zeros at the end."""
        return F.pad(x, (0, 0, 0, self._behind)).unfold(-2, self.queries, self.queries).mT

    def keys_of(
        self, x: Shaped[Tensor, "*rows length width"], fill: int = 0
    ) -> Shaped[Tensor, "*rows blocks keys width"]:
        """Returns the keys (or the values) of each block.

        Args:
            fill: padding value before the first and after the last.
        """
        around = self.window, self._behind + (0 if self.causal else self.window)
        return F.pad(x, (0, 0, *around), value=fill).unfold(-2, self.keys, self.queries).mT

    @property
    def _behind(self) -> int:
        """Number of padding queries in the last block."""
        return self.blocks * self.queries - self.length


def window_mask(
    num_queries: int, num_keys: int, window: int, device: torch.device, *, causal: bool
) -> Bool[Tensor, "queries keys"]:
    """A band, aligned at the last query and the last key: M[i, j] = |p - j| < window and (not causal or j <= p) with
    p = i + num_keys - num_queries."""
    past = num_keys - num_queries
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(past + (0 if causal else window - 1)).triu(past - window + 1)
