"""Which examples make up which update."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The share of one rank in one of the accumulated batches of an update.

    Attributes:
        indices: of the examples; of windows of long texts, see ``TrainingWindows``; none: there is nothing left for
            this part.
        normalizer: scored labels of the whole update.
    """

    indices: Int[np.ndarray, "batch *place"]
    normalizer: int


@dataclass(frozen=True, slots=True)
class StepSize:
    """What an optimizer step reads: a number of examples, or at most a number of tokens.

    Attributes:
        global_size: examples, over all ranks and accumulated batches; None: as ``max_tokens`` says.
        max_tokens: the most tokens, likewise; None: as ``global_size`` says.
        accumulate: batches of each rank.
    """

    global_size: int | None = None
    max_tokens: int | None = None
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class RankSlice:
    """Which batches are those of one rank.

    Attributes:
        rank: of this process.
        world_size: number of processes.
    """

    rank: int = 0
    world_size: int = 1


SINGLE_RANK = RankSlice()
"""All of it."""


class Updates(ABC):
    """Endless updates; update k is a function of (seed, k) alone, so a run can go on at any step.

    Args:
        step_size: of an update.
        seed: of all draws.
        ranks: which part of each update this process gets.
        start: number of micro-batches that this rank has already seen.

    Raises:
        ValueError: an update that cannot be split evenly.
    """

    def __init__(self, *, step_size: StepSize, seed: int, ranks: RankSlice, start: int) -> None:
        size, accumulate = step_size.global_size, step_size.accumulate
        self.parts = accumulate * ranks.world_size
        if size is not None and size % self.parts:
            raise ValueError(
                f"batch.size={size} cannot be split evenly into trainer.accumulate_grad_batches={accumulate}"
                f" parts on {ranks.world_size} processes; expected a multiple of {self.parts}"
            )
        self.accumulate, self.seed, self.ranks, self.start = accumulate, seed, ranks, start

    @abstractmethod
    def update(self, k: int) -> Int[np.ndarray, "update *place"]:
        """Where the examples of update k are."""

    @abstractmethod
    def num_labels(self, update: Int[np.ndarray, "update *place"]) -> int:
        """Scored labels of an update."""

    def __iter__(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches, from the one after ``start`` on, without end. Those of ``max_tokens`` may be
        empty, where an update has few examples: each rank has as many batches as the others."""
        i = self.start
        while True:
            k, part = divmod(i, self.accumulate)
            update = self.update(k)
            first = part * self.ranks.world_size + self.ranks.rank
            mine = update[first :: self.parts]  # a stride: all parts get all sizes
            yield MicroBatch(mine, self.num_labels(update))
            i += 1


class TrainingSampler(Updates):
    """Updates of a list of examples (see ``Updates``).

    The examples come as one permutation of the split after the other, so each is seen once an epoch. A pool of them is
    sorted by size and cut into updates whose order is shuffled: examples of like size meet, and little is padding.

    An update holds either so many examples, or at most so many tokens. In the first case ``pool_size`` updates are a
    pool, and an update may hold the end of one epoch and the start of the next. In the second an epoch is a pool: its
    sorted sizes are always the same, and so are the places where it is cut.

    Args:
        sizes: tokens of each example.
        num_scored: scored labels of each example.
        step_size: see ``Updates``, as the others.
        pool_size: updates that are drawn together, where these have a number of examples.

    Raises:
        ValueError: an update that cannot be split evenly, no examples, or one of more than ``max_tokens``.
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
        self._cuts: Int[np.ndarray, " updates+1"]  # of a sorted pool
        if (size := step_size.global_size) is not None:
            # A pool of several epochs would sort the copies of an example into one update.
            self._cuts = np.arange(max(1, min(pool_size, len(sizes) // size)) + 1) * size
        else:
            assert step_size.max_tokens is not None
            self._cuts = cuts_of(np.sort(sizes), step_size.max_tokens)
        self._permutation = lru_cache(maxsize=2)(self._permutation_of)
        self._pool = lru_cache(maxsize=1)(self._pool_of)

    @property
    def pool_size(self) -> int:
        """Updates that are drawn together."""
        return len(self._cuts) - 1

    def update(self, k: int) -> Int[np.ndarray, " update"]:
        """The indices of the examples of update k, in ascending size."""
        indices, order = self._pool(k // self.pool_size)
        place = order[k % self.pool_size]
        return indices[self._cuts[place] : self._cuts[place + 1]]

    def num_labels(self, update: Int[np.ndarray, " update"]) -> int:
        """Scored labels of an update."""
        return int(self.num_scored[update].sum())

    def _permutation_of(self, epoch: int) -> Int[np.ndarray, " examples"]:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.sizes))

    def _pool_of(self, number: int) -> tuple[Int[np.ndarray, " pool"], Int[np.ndarray, " updates"]]:
        """The examples of a pool in ascending size, and the order of its updates."""
        pool = self._cuts[-1]
        places = np.arange(number * pool, (number + 1) * pool)
        epochs, offsets = np.divmod(places, len(self.sizes))
        indices = np.concatenate([self._permutation(int(e))[offsets[epochs == e]] for e in np.unique(epochs)])
        indices = indices[np.argsort(self.sizes[indices], kind="stable")]
        return indices, np.random.default_rng((self.seed, 1, number)).permutation(self.pool_size)


def cuts_of(sizes: Int[np.ndarray, " examples"], batch_tokens: int) -> Int[np.ndarray, " updates+1"]:
    """Where a list is cut, so that each part has as many examples as ``batch_tokens`` allow; from 0 to its end.

    Args:
        sizes: tokens of each example.
        batch_tokens: the most tokens of a part.

    Raises:
        ValueError: an example of more tokens.
    """
    if sizes.max(initial=0) > batch_tokens:
        raise ValueError(f"batch.tokens={batch_tokens}: an example has {sizes.max()} tokens")
    ends, cuts = np.cumsum(sizes), [0]
    while cuts[-1] < len(sizes):
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(int(np.searchsorted(ends, before + batch_tokens, side="right")))
    return np.array(cuts)


def evaluation_batches(
    sizes: Int[np.ndarray, " examples"], batch_size: int, ranks: RankSlice = SINGLE_RANK
) -> list[Int[np.ndarray, " batch"]]:
    """Every example once, like sizes together; whole batches are dealt to the ranks in turn.

    The batches do not depend on the number of ranks, since padding and shapes may change the last digits of what is
    computed. A rank for which none is left gets an empty one: the others would wait in vain for its part.

    Args:
        sizes: tokens of each example.
        batch_size: the most examples of a batch.
    """
    order = np.argsort(sizes, kind="stable")
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return batches[ranks.rank :: ranks.world_size] or [order[:0]]
