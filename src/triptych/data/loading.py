"""Batches for the Trainer."""

from collections.abc import Iterator
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, Dataset, Sampler

from triptych.data.batch import Batch, EncodedSet, collate
from triptych.data.sampler import MicroBatch, TrainingSampler, evaluation_batches
from triptych.signals import ignore_in_worker


class _Collated(Dataset[Batch]):
    """A split whose items are whole batches: the key is what a sampler yields."""

    def __init__(self, examples: EncodedSet) -> None:
        self._examples = examples

    def __getitem__(self, key: MicroBatch) -> Batch:
        return collate([self._examples[i] for i in key.indices], key.normalizer)


class _EvaluationSampler(Sampler[MicroBatch]):
    def __init__(self, examples: EncodedSet, batch_size: int, rank: int, world_size: int) -> None:
        self._batches = [
            MicroBatch(indices, int(examples.num_scored[indices].sum()))
            for indices in evaluation_batches(examples.sizes, batch_size, rank, world_size)
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self._batches)


def _whole(batch: Any) -> Any:
    return batch


class DataModule(L.LightningDataModule):
    """The three encoded splits as loaders.

    Args:
        train: encoded training split; None: there will be no training.
        validation: encoded validation split.
        test: encoded test split.
        batch_size: examples of an update, over all ranks and accumulated batches.
        accumulate: batches that an update is split into.
        eval_batch_size: examples of a batch in validation and test; it changes no metric.
        num_workers: processes that collate batches ahead of time; 0: none.
        seed: of the order of the examples.

    Attributes:
        start: updates that were done when this run goes on.

    Raises:
        ValueError: an empty split.
    """

    def __init__(
        self,
        *,
        train: EncodedSet | None,
        validation: EncodedSet,
        test: EncodedSet,
        batch_size: int,
        accumulate: int,
        eval_batch_size: int,
        num_workers: int,
        seed: int,
    ) -> None:
        super().__init__()
        for name, split in (("train", train), ("validation", validation), ("test", test)):
            if split is not None and len(split.sizes) == 0:
                raise ValueError(f"the {name} split is empty")
        self.train, self.validation, self.test = train, validation, test
        self.batch_size, self.accumulate, self.eval_batch_size = batch_size, accumulate, eval_batch_size
        self.num_workers, self.seed = num_workers, seed
        self.start = 0

    @property
    def too_long(self) -> dict[str, int]:
        """By split: how many examples had more tokens than fit, and were truncated or dropped."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split.too_long for name, split in splits.items() if split is not None}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Endless: steps are the clock, not epochs."""
        assert self.train is not None
        return self._loader(self.train, self._training_sampler())

    def describe_update(self, update: int, count: int = 3) -> str:
        """Which examples an update reads, for a message.

        Args:
            update: its number, from 1.
            count: how many of them to name.
        """
        assert self.train is not None
        indices = self._training_sampler().update(update - 1)
        examples = [self.train[int(i)].example for i in indices[:count]]
        names = [f"window {i}" if e is None else e.where for i, e in zip(indices, examples, strict=False)]
        return "; ".join(names) + (f"; and {len(indices) - count} more" if len(indices) > count else "")

    def val_dataloader(self) -> DataLoader[Batch]:
        """Each validation example once."""
        return self._loader(self.validation, _EvaluationSampler(self.validation, self.eval_batch_size, *self._place()))

    def test_dataloader(self) -> DataLoader[Batch]:
        """Each test example once."""
        return self._loader(self.test, _EvaluationSampler(self.test, self.eval_batch_size, *self._place()))

    def _training_sampler(self) -> TrainingSampler:
        assert self.train is not None
        rank, world_size = self._place()
        return TrainingSampler(
            sizes=self.train.sizes,
            num_scored=self.train.num_scored,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            start=self.start * self.accumulate,
        )

    def _loader(self, split: EncodedSet, sampler: TrainingSampler | _EvaluationSampler) -> DataLoader[Batch]:
        return DataLoader(
            _Collated(split),
            sampler=sampler,
            batch_size=None,
            collate_fn=_whole,
            num_workers=self.num_workers,
            worker_init_fn=ignore_in_worker,
        )

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
