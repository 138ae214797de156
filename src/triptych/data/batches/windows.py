"""Windows of long texts, for evaluation and training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from triptych.data.batches.batch import IGNORE_INDEX, EncodedDataset, EncodedExample

Layout = Callable[[Int[np.ndarray, " window"]], EncodedExample]
"""Encodes a window, given one token more than its inputs, since the label of each token is the next one."""


class Windows:
    """The windows of an evaluation. Each token except the first of a text counts towards the loss exactly once.

    The labels of a text start at its second token. Its windows start at 0, stride, 2 stride, ..., and the last may be
    shorter. The overlap with the previous window is only context. Except near the start of its text, every token thus
    has at least length - stride tokens of context. No window crosses the end of a document.

    Args:
        texts: token ids of each text.
        length: number of inputs per window.
        stride: distance between windows, at most ``length``.
        encode: encodes a window.
        ends: document boundaries of each text (see ``Shard.ends``); None: each text is one document.

    Raises:
        ValueError: a text of fewer than two tokens.
    """

    def __init__(
        self,
        texts: Sequence[Integer[np.ndarray, " tokens"]],
        *,
        length: int,
        stride: int,
        encode: Layout,
        ends: Sequence[Int[np.ndarray, " documents_and_one"]] | None = None,
    ) -> None:
        check_window_lengths(texts)
        self.texts, self.length, self.stride, self._encode = texts, length, stride, encode
        self.too_long = 0
        ends = [np.array([0, len(ids) - 1]) for ids in texts] if ends is None else ends
        self._text = np.repeat(np.arange(len(texts)), [len(places) - 1 for places in ends])
        self._start = np.concatenate([places[:-1] for places in ends])
        self._stop = np.concatenate([places[1:] for places in ends])
        counts = 1 - (-np.maximum(self._stop - self._start - length, 0) // stride)
        self._first = np.cumsum(counts) - counts  # window of each document
        of = np.repeat(np.arange(len(counts)), counts)
        starts, stops, num_new = self._places(of, np.arange(len(of)))
        layouts = {n: encode(np.zeros(n + 1, dtype=np.int64)) for n in np.unique(stops - starts).tolist()}
        table = np.zeros((length + 1, 2), dtype=np.int64)
        for n, item in layouts.items():
            table[n] = item.size, len(item.labels)
        self.sizes: Int[np.ndarray, " windows"] = table[stops - starts, 0]
        self.num_scored: Int[np.ndarray, " windows"] = np.minimum(table[stops - starts, 1], num_new)

    def __getitem__(self, index: int) -> EncodedExample:
        document = int(np.searchsorted(self._first, index, side="right")) - 1
        start, stop, num_new = map(int, self._places(document, index))
        window = self._encode(self.texts[self._text[document]][start : stop + 1].astype(np.int64))
        if num_new < len(window.labels):
            is_new = np.arange(len(window.labels)) >= len(window.labels) - num_new
            return replace(window, labels=np.where(is_new, window.labels, IGNORE_INDEX))
        return window

    def _places(self, document: Any, index: Any) -> tuple[Any, Any, Any]:
        """Returns the first token and the end of windows, and the number of labels that the previous window lacks."""
        number = index - self._first[document]
        begin, end = self._start[document], self._stop[document]
        start = begin + number * self.stride
        stop = np.minimum(start + self.length, end)
        num_new = np.where(number == 0, stop - start, stop - np.minimum(start - self.stride + self.length, end))
        return start, stop, num_new


def split_into_windows(line: EncodedExample, length: int, stride: int) -> list[EncodedExample]:
    """Splits a line into windows in which each label counts towards the loss once; a short line is one window.

    Args:
        line: each of its tokens has the next one as label.
        length: number of inputs per window.
        stride: distance between windows.
    """
    if len(line.inputs) <= length:
        return [line]
    text = np.append(line.inputs, line.labels[-1])
    windows = Windows(
        [text], length=length, stride=stride, encode=lambda ids: EncodedExample(ids[:-1], ids[1:], example=line.example)
    )
    return [replace(windows[i], prefix=max(line.prefix - i * stride, 0)) for i in range(len(windows.sizes))]


class TrainingWindows:
    """The windows of training, over one or several texts. ``WindowSampler`` selects them.

    Args:
        texts: token ids of each text.
        weights: relative frequency of the windows of each text.
        length: number of inputs per window.
        encode: encodes a window.

    Attributes:
        size: number of tokens of an encoded window.

    Raises:
        ValueError: a text of fewer than two tokens.
    """

    def __init__(
        self, texts: Sequence[Integer[np.ndarray, " tokens"]], weights: Sequence[float], *, length: int, encode: Layout
    ) -> None:
        check_window_lengths(texts)
        self.texts, self.weights, self.length, self._encode = texts, weights, length, encode
        self.too_long = 0
        self.size = encode(np.zeros(length + 1, dtype=np.int64)).size
        self.num_scored = lru_cache(self._num_scored)

    def __getitem__(self, window: Int[np.ndarray, "3"]) -> EncodedExample:
        """Returns the window whose labels are the tokens after start, ..., stop - 1 of a text.

        Args:
            window: text, start, stop.
        """
        text, start, stop = window.tolist()
        return self._encode(self.texts[text][start : stop + 1].astype(np.int64))

    def _num_scored(self, num_labels: int) -> int:
        """Returns the number of labels that count towards the loss in a window of ``num_labels`` labels."""
        return self._encode(np.zeros(num_labels + 1, dtype=np.int64)).num_scored


Training = EncodedDataset | TrainingWindows


def check_window_lengths(texts: Sequence[Integer[np.ndarray, " tokens"]]) -> None:
    """Checks that each text has a next token to predict."""
    for ids in texts:
        if len(ids) < 2:
            raise ValueError(f"a split of {len(ids)} tokens: a language model needs at least two")
