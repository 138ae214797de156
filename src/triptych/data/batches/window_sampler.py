"""The sampler of windows of long texts, and the choice of a sampler."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxtyping import Int

from triptych.data.batches.sampler import SINGLE_RANK, RankSlice, StepSampler, StepSize, TrainingSampler
from triptych.data.batches.windows import Training, TrainingWindows

BLOCK = 2**16
"""Number of windows whose texts are drawn together."""


class WindowSampler(StepSampler):
    """Steps over windows of long texts. Its memory does not grow with the texts.

    In each epoch a text is cut into adjacent windows, so that each token except the first is a label exactly once. The
    first window has 1 to ``length`` labels, drawn for each epoch, so the cuts differ between epochs. The order of the
    windows is also drawn for each epoch.

    With several texts, each window comes from a text drawn in proportion to the weights and is the next window of that
    text. Each text has its own epochs.

    Args:
        windows: the texts, with the encoding of their windows.
        step_size: see ``StepSampler``, as for the other arguments.

    Raises:
        ValueError: a step that cannot be split evenly, or that is too small for a window per part.
    """

    def __init__(
        self,
        windows: TrainingWindows,
        *,
        step_size: StepSize,
        seed: int,
        ranks: RankSlice = SINGLE_RANK,
        start: int = 0,
    ) -> None:
        size, tokens = step_size.global_size, step_size.max_tokens
        if size is None:
            assert tokens is not None
            parts = step_size.accumulate * ranks.world_size
            size = tokens // (parts * windows.size) * parts
            if not size:
                raise ValueError(
                    f"batch.max_tokens={tokens}: a window has {windows.size} tokens; expected at least "
                    f"{parts * windows.size}"
                )
        super().__init__(step_size=replace(step_size, global_size=size), seed=seed, ranks=ranks, start=start)
        self.windows, self.batch_size = windows, size
        self.shares = np.array(windows.weights) / np.sum(windows.weights)
        self._drawn = [np.zeros(len(self.shares), dtype=np.int64)]  # windows of each text before each block
        self._begins = [[0] for _ in windows.texts]  # windows of a text before each of its epochs
        self._block = lru_cache(maxsize=2)(self._block_of)

    def indices_of_step(self, k: int) -> Int[np.ndarray, "batch_size 3"]:
        """Returns the windows of step k as (text, start, stop); see ``TrainingWindows``."""
        places = np.arange(k * self.batch_size, (k + 1) * self.batch_size)
        rows = np.empty((self.batch_size, 3), dtype=np.int64)
        for block in np.unique(places // BLOCK).tolist():
            here = np.flatnonzero(places // BLOCK == block)
            texts, before = self._block(block)
            first, last = places[here[0]] % BLOCK, places[here[-1]] % BLOCK
            for text in np.unique(texts[first : last + 1]).tolist():
                mine = here[texts[first : last + 1] == text]
                number = before[text] + np.count_nonzero(texts[:first] == text)
                rows[mine] = self._windows_of(text, np.arange(number, number + len(mine)))
        return rows

    def num_labels(self, indices: Int[np.ndarray, "batch_size 3"]) -> int:
        return sum(self.windows.num_scored(n) for n in (indices[:, 2] - indices[:, 1]).tolist())

    def _block_of(self, block: int) -> tuple[Int[np.ndarray, " block"], Int[np.ndarray, " texts"]]:
        """Returns the text of each window of a block, and the number of earlier windows of each text."""
        while len(self._drawn) <= block + 1:
            generator = np.random.default_rng((self.seed, 2, len(self._drawn) - 1))
            self._drawn.append(self._drawn[-1] + generator.multinomial(BLOCK, self.shares))
        texts = np.repeat(np.arange(len(self.shares)), self._drawn[block + 1] - self._drawn[block])
        # independent draws are multinomial counts in random order
        return np.random.default_rng((self.seed, 3, block)).permutation(texts), self._drawn[block]

    def _windows_of(self, text: int, numbers: Int[np.ndarray, " windows"]) -> Int[np.ndarray, "windows 3"]:
        """Returns the windows with these numbers, which count through all epochs of a text."""
        begins, length, num_labels = self._begins[text], self.windows.length, len(self.windows.texts[text]) - 1
        while begins[-1] <= numbers[-1]:
            begins.append(begins[-1] + self._num_windows(text, len(begins) - 1))
        rows = np.full((len(numbers), 3), text)
        epochs = np.searchsorted(begins, numbers, side="right") - 1
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            places = numbers[mine] - begins[epoch]
            order = shuffled(places, begins[epoch + 1] - begins[epoch], (self.seed, 1, text, epoch))
            stops = self._first_stop(text, epoch) + order * length
            rows[mine, 1] = np.maximum(stops - length, 0)
            rows[mine, 2] = np.minimum(stops, num_labels)
        return rows

    def _first_stop(self, text: int, epoch: int) -> int:
        return int(np.random.default_rng((self.seed, 0, text, epoch)).integers(1, self.windows.length, endpoint=True))

    def _num_windows(self, text: int, epoch: int) -> int:
        rest = len(self.windows.texts[text]) - 1 - self._first_stop(text, epoch)
        return 1 - (-max(rest, 0) // self.windows.length)


def training_sampler(
    train: Training, *, step_size: StepSize, seed: int, ranks: RankSlice, start: int = 0
) -> StepSampler:
    """Makes the sampler of a training split: windows of long texts, or examples.

    Args:
        train: encoded training split.
        step_size: see ``StepSampler``, as for the other arguments.

    Raises:
        ValueError: a step that cannot be split evenly, or that is too small for an example.
    """
    if isinstance(train, TrainingWindows):
        return WindowSampler(train, step_size=step_size, seed=seed, ranks=ranks, start=start)
    sizes, num_scored = train.sizes, train.num_scored
    return TrainingSampler(sizes=sizes, num_scored=num_scored, step_size=step_size, seed=seed, ranks=ranks, start=start)


def shuffled(places: Int[np.ndarray, " places"], count: int, seed: tuple[int, ...]) -> Int[np.ndarray, " places"]:
    """Returns the values at these places of a random permutation of 0, ..., count - 1, without storing it. It is a
    Feistel network of eight rounds with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains")."""
    half = np.uint64(max((count - 1).bit_length() + 1, 2) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.default_rng(seed).integers(2**64, size=8, dtype=np.uint64)

    def permute(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)  # modulo 2**64
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ (mixed >> np.uint64(32)) & mask
        return left << half | right

    values = permute(places.astype(np.uint64))
    while (outside := values >= count).any():
        values[outside] = permute(values[outside])
    return values.astype(np.int64)
