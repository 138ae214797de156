"""Which examples make up which update."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The share of one rank in one of the accumulated batches of an update.

    Attributes:
        indices: of the examples.
        normalizer: scored labels of the whole update.
    """

    indices: Int[np.ndarray, " batch"]
    normalizer: int


class TrainingSampler:
    """Endless updates; update k is a function of (seed, k) alone, so a run can go on at any step.

    The examples come as one permutation of the split after the other, so each is seen once an epoch; an update may
    hold the end of one epoch and the start of the next. ``pool_size`` updates are drawn together, sorted by size and
    cut into updates whose order is shuffled: examples of like size meet, and little is padding.

    Args:
        sizes: tokens of each example.
        num_scored: scored labels of each example.
        batch_size: examples of an update, over all ranks and accumulated batches.
        accumulate: batches that an update is split into.
        seed: of the permutations.
        rank: of this process.
        world_size: number of processes.
        pool_size: updates that are drawn together.
        start: number of micro-batches that this rank has already seen.

    Raises:
        ValueError: an update that cannot be split evenly, or no examples.
    """

    def __init__(
        self,
        *,
        sizes: Int[np.ndarray, " examples"],
        num_scored: Int[np.ndarray, " examples"],
        batch_size: int,
        accumulate: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        pool_size: int = 50,
        start: int = 0,
    ) -> None:
        if len(sizes) == 0:
            raise ValueError("the training split is empty")
        if batch_size % (accumulate * world_size):
            raise ValueError(
                f"batch.size={batch_size} cannot be split evenly into trainer.accumulate_grad_batches={accumulate}"
                f" parts on {world_size} processes; expected a multiple of {accumulate * world_size}"
            )
        self.sizes, self.num_scored = sizes, num_scored
        self.batch_size, self.accumulate, self.seed = batch_size, accumulate, seed
        self.rank, self.world_size, self.start = rank, world_size, start
        # A pool of several epochs would sort the copies of an example into one update.
        self.pool_size = max(1, min(pool_size, len(sizes) // batch_size))
        self._permutation = lru_cache(maxsize=2)(self._permutation_of)
        self._pool = lru_cache(maxsize=1)(self._pool_of)

    def update(self, k: int) -> Int[np.ndarray, " batch_size"]:
        """The indices of the examples of update k, in ascending size."""
        row: Int[np.ndarray, " batch_size"] = self._pool(k // self.pool_size)[k % self.pool_size]
        return row

    def __iter__(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches, from the one after ``start`` on, without end."""
        parts = self.accumulate * self.world_size
        i = self.start
        while True:
            k, part = divmod(i, self.accumulate)
            indices = self.update(k)
            mine = indices[part * self.world_size + self.rank :: parts]  # a stride: all parts get all sizes
            yield MicroBatch(mine, int(self.num_scored[indices].sum()))
            i += 1

    def _permutation_of(self, epoch: int) -> Int[np.ndarray, " examples"]:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.sizes))

    def _pool_of(self, number: int) -> Int[np.ndarray, "pool_size batch_size"]:
        pool = self.batch_size * self.pool_size
        places = np.arange(number * pool, (number + 1) * pool)
        epochs, offsets = np.divmod(places, len(self.sizes))
        indices = np.concatenate([self._permutation(int(e))[offsets[epochs == e]] for e in np.unique(epochs)])
        indices = indices[np.argsort(self.sizes[indices], kind="stable")].reshape(self.pool_size, self.batch_size)
        return indices[np.random.default_rng((self.seed, 1, number)).permutation(self.pool_size)]


def evaluation_batches(
    sizes: Int[np.ndarray, " examples"], batch_size: int, rank: int = 0, world_size: int = 1
) -> list[Int[np.ndarray, " batch"]]:
    """Every example once, like sizes together; whole batches are dealt to the ranks in turn.

    The batches do not depend on the number of ranks, since padding and shapes may change the last digits of what is
    computed. A rank for which none is left gets an empty one: the others would wait in vain for its part.

    Args:
        sizes: tokens of each example.
        batch_size: the most examples of a batch.
        rank: of this process.
        world_size: number of processes.
    """
    order = np.argsort(sizes, kind="stable")
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return batches[rank::world_size] or [order[:0]]
