"""A long text as windows of fixed length."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from triptych.data.batch import Encoded


class Windows:
    """The windows ids[i : i + length + 1], i = 0, stride, 2 stride, ...; the last may be shorter.

    Each window has one token more than is read, since each token's label is the next one. With stride = length every
    token but the first is scored exactly once; with stride 1 the windows are all that the text has.

    Args:
        ids: the tokens of the text.
        length: tokens that are read at once.
        stride: distance of two windows.
        encode: makes the example of a window.

    Raises:
        ValueError: a text of fewer than two tokens.
    """

    def __init__(
        self,
        ids: Int[np.ndarray, " tokens"],
        *,
        length: int,
        stride: int,
        encode: Callable[[Int[np.ndarray, " window"]], Encoded],
    ) -> None:
        if len(ids) < 2:
            raise ValueError(f"a split of {len(ids)} tokens: a language model needs at least two")
        self.ids, self.length, self.stride, self._encode = ids, length, stride, encode
        count = 1 - (-max(len(ids) - 1 - length, 0) // stride)
        last = self[count - 1]  # all others are full, and alike
        self.sizes: Int[np.ndarray, " windows"] = np.full(count, self[0].size)
        self.num_scored: Int[np.ndarray, " windows"] = np.full(count, self[0].num_scored)
        self.sizes[-1], self.num_scored[-1] = last.size, last.num_scored

    def __getitem__(self, index: int) -> Encoded:
        """One window."""
        start = index * self.stride
        return self._encode(self.ids[start : start + self.length + 1])
