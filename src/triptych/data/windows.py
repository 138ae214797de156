"""A long text as windows of fixed length."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from triptych.data.batch import IGNORE, Encoded


class Windows:
    """The windows ids[i : i + length + 1], i = 0, stride, 2 stride, ...; the last may be shorter.

    Each window has one token more than is read, since each token's label is the next one. With stride = length every
    token but the first is scored exactly once; with stride 1 the windows are all that the text has. With
    ``scores_once``, too, no token is scored twice: what a window shares with the one before is context.

    Args:
        ids: the tokens of the text.
        length: tokens that are read at once.
        stride: distance of two windows.
        encode: makes the example of a window.
        scores_once: whether a window's labels that the window before had already are left out.

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
        scores_once: bool = False,
    ) -> None:
        if len(ids) < 2:
            raise ValueError(f"a split of {len(ids)} tokens: a language model needs at least two")
        self.ids, self.length, self.stride, self._encode, self._scores_once = ids, length, stride, encode, scores_once
        self.too_long = 0
        count = 1 - (-max(len(ids) - 1 - length, 0) // stride)
        self.sizes: Int[np.ndarray, " windows"] = np.full(count, self[0].size)
        self.num_scored: Int[np.ndarray, " windows"] = np.full(count, self[min(1, count - 1)].num_scored)
        for i in (0, count - 1):  # all between them are alike
            self.sizes[i], self.num_scored[i] = self[i].size, self[i].num_scored

    def __getitem__(self, index: int) -> Encoded:
        """One window."""
        start = index * self.stride
        window = self._encode(self.ids[start : start + self.length + 1])
        if self._scores_once and index > 0:
            num_new = min(self.stride, len(self.ids) - 1 - (start - self.stride + self.length))
            is_new = np.arange(len(window.labels)) >= len(window.labels) - num_new
            return replace(window, labels=np.where(is_new, window.labels, IGNORE))
        return window
