"""Samplers of short examples."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The part of one accumulated batch of a step that one rank processes.

    Attributes:
        indices: indices of the examples (for windows, see ``TrainingWindows``); may be empty.
        num_labels_in_step: number of labels in the whole step that count towards the loss.
    """

    indices: Int[np.ndarray, "batch *place"]
    num_labels_in_step: int


@dataclass(frozen=True, slots=True)
class StepSize:
    """Size of an optimizer step, as a number of examples or a maximum number of tokens.

    Attributes:
        global_size: examples over all ranks and accumulated batches; None: set by ``max_tokens``.
        max_tokens: maximum number of tokens over all ranks and accumulated batches; None: set by ``global_size``.
        accumulate: number of batches per rank.
    """

    global_size: int | None = None
    max_tokens: int | None = None
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class RankSlice:
    """The part of each step that one rank processes.

    Attributes:
        rank: rank of this process.
        world_size: number of processes.
    """

    rank: int = 0
    world_size: int = 1


SINGLE_RANK = RankSlice()


class StepSampler(ABC):
    """An endless sequence of steps. Step k depends only on (seed, k), so a run can resume at any step.

    Args:
        step_size: size of a step.
        seed: seed of all draws.
        ranks: part of each step that this process gets.
        start: number of micro-batches that this rank has already processed.

    Raises:
        ValueError: a step that cannot be split evenly.
    """

    def __init__(self, *, step_size: StepSize, seed: int, ranks: RankSlice, start: int) -> None:
        size, accumulate = step_size.global_size, step_size.accumulate
        self.parts = accumulate * ranks.world_size
        if size is not None and size % self.parts:
            raise ValueError(
                f"batch.global_size={size} cannot be split evenly into trainer.accumulate_grad_batches={accumulate}"
                f" parts on {ranks.world_size} processes; expected a multiple of {self.parts}"
            )
        self.accumulate, self.seed, self.ranks, self.start = accumulate, seed, ranks, start

    @abstractmethod
    def indices_of_step(self, k: int) -> Int[np.ndarray, "indices_of_step *place"]:
        """Returns the indices of the examples of step k."""

    @abstractmethod
    def num_labels(self, indices: Int[np.ndarray, "indices_of_step *place"]) -> int:
        """Returns the number of labels of a step that count towards the loss."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yields this rank's micro-batches after the first ``start``, without end. With ``max_tokens`` they may be
        empty if a step has few examples, since every rank has the same number of batches."""
        i = self.start
        while True:
            k, part = divmod(i, self.accumulate)
            indices = self.indices_of_step(k)
            first = part * self.ranks.world_size + self.ranks.rank
            mine = indices[first :: self.parts]  # strided, so that every part gets all sizes
            yield MicroBatch(mine, self.num_labels(indices))
            i += 1


class TrainingSampler(StepSampler):
    """Steps over a list of examples.

    The examples are one permutation of the split after the other, so each occurs once per epoch. A pool of examples is
    sorted by size and cut into steps, whose order is shuffled. Examples of similar size thus share a step, with little
    padding.

    If the step size is a number of examples, ``pool_size`` steps form a pool. A step may then contain the end of one
    epoch and the start of the next. If the step size is a maximum number of tokens, an epoch is a pool: its sorted
    sizes, and hence its cuts, are the same in each epoch.

    Args:
        sizes: number of tokens of each example.
        num_scored: number of labels of each example that count towards the loss.
        step_size: see ``StepSampler``, as for the other arguments.
        pool_size: steps per pool, if the step size is a number of examples.

    Raises:
        ValueError: a step that cannot be split evenly, no examples, or an example of more than ``max_tokens``.
    """

    def __init__(
        self,
        *,
        sizes: Int[np.ndarray, " examples"],
        num_scored: Int[np.ndarray, " examples"],
        step_size: StepSize,
        seed: int,
        pool_size: int = 50,
        ranks: RankSlice = SINGLE_RANK,
        start: int = 0,
    ) -> None:
        if len(sizes) == 0:
            raise ValueError("the training split is empty")
        super().__init__(step_size=step_size, seed=seed, ranks=ranks, start=start)
        self.sizes, self.num_scored = sizes, num_scored
        self._cuts: Int[np.ndarray, " steps+1"]  # into a sorted pool
        if (size := step_size.global_size) is not None:
            # A pool of several epochs would sort the copies of an example into one step.
            self._cuts = np.arange(max(1, min(pool_size, len(sizes) // size)) + 1) * size
        else:
            assert step_size.max_tokens is not None
            self._cuts = cuts_of(np.sort(sizes), step_size.max_tokens)
        self._permutation = lru_cache(maxsize=2)(self._permutation_of)
        self._pool = lru_cache(maxsize=1)(self._pool_of)

    @property
    def pool_size(self) -> int:
        """Number of steps per pool."""
        return len(self._cuts) - 1

    def indices_of_step(self, k: int) -> Int[np.ndarray, " indices"]:
        """Returns the indices of the examples of step k, sorted by size."""
        indices, order = self._pool(k // self.pool_size)
        place = order[k % self.pool_size]
        return indices[self._cuts[place] : self._cuts[place + 1]]

    def num_labels(self, indices: Int[np.ndarray, " indices"]) -> int:
        return int(self.num_scored[indices].sum())

    def _permutation_of(self, epoch: int) -> Int[np.ndarray, " examples"]:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.sizes))

    def _pool_of(self, number: int) -> tuple[Int[np.ndarray, " pool"], Int[np.ndarray, " steps"]]:
        """Returns the examples of a pool, sorted by size, and the order of its steps."""
        pool = self._cuts[-1]
        places = np.arange(number * pool, (number + 1) * pool)
        epochs, offsets = np.divmod(places, len(self.sizes))
        indices = np.concatenate([self._permutation(int(e))[offsets[epochs == e]] for e in np.unique(epochs)])
        indices = indices[np.argsort(self.sizes[indices], kind="stable")]
        return indices, np.random.default_rng((self.seed, 1, number)).permutation(self.pool_size)


def cuts_of(sizes: Int[np.ndarray, " examples"], batch_tokens: int) -> Int[np.ndarray, " steps+1"]:
    """Cuts a list greedily into parts of at most ``batch_tokens`` tokens; returns the cuts, including 0 and the end.

    Args:
        sizes: number of tokens of each example.
        batch_tokens: maximum number of tokens per part.

    Raises:
        ValueError: an example has more tokens.
    """
    if sizes.max(initial=0) > batch_tokens:
        raise ValueError(f"batch.max_tokens={batch_tokens}: an example has {sizes.max()} tokens")
    ends, cuts = np.cumsum(sizes), [0]
    while cuts[-1] < len(sizes):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, before + batch_tokens, side="right")))
    return np.array(cuts)


def evaluation_batches(
    sizes: Int[np.ndarray, " examples"], batch_size: int, ranks: RankSlice = SINGLE_RANK
) -> list[Int[np.ndarray, " batch"]]:
    """Batches every example once, sorted by size, and distributes whole batches over the ranks in turn.

    The batches do not depend on the number of ranks, since padding and shapes may change the last digits of the
    results. A rank without a batch gets an empty one, because the other ranks wait for it.

    Args:
        sizes: number of tokens of each example.
        batch_size: maximum number of examples per batch.
        ranks: part that this process gets.
    """
    order = np.argsort(sizes, kind="stable")
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return batches[ranks.rank :: ranks.world_size] or [order[:0]]
