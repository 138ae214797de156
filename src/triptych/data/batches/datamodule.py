"""The LightningDataModule, which makes the data loaders.

Tested by tests/assembly/test_loaders.py and tests/data/corpora/test_example_cache.py.
"""

import atexit
import multiprocessing
import signal
from collections.abc import Iterable

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

from triptych.data.batches.arrays import EncodedArrays
from triptych.data.batches.batch import Batch, EncodedDataset, collate, empty_batch
from triptych.data.batches.sampler import MicroBatch, RankSlice, StepSampler, StepSize, evaluation_batches
from triptych.data.batches.window_sampler import training_sampler
from triptych.data.batches.windows import Training, TrainingWindows
from triptych.launch.signals import STOPS, ignore_signals, restore_handlers


class Collated(Dataset[Batch]):
    """A dataset whose items are whole batches.

    Args:
        examples: encoded split.
        packed: whether to concatenate texts into one row, without padding.
    """

    def __init__(self, examples: Training, *, packed: bool = False) -> None:
        self._examples, self._packed = examples, packed

    def __getitem__(self, key: MicroBatch) -> Batch:
        """Collates the examples that a sampler selected."""
        if len(key.indices) and isinstance(self._examples, EncodedArrays):
            return self._examples.collate(key.indices, key.num_labels_in_step, packed=self._packed)
        items = [self._examples[i] for i in key.indices]
        if items:
            return collate(items, key.num_labels_in_step, packed=self._packed, indices=key.indices)
        assert not isinstance(self._examples, TrainingWindows)  # every part of a step contains windows
        return empty_batch(self._examples[0], key.num_labels_in_step)


class DataModule(L.LightningDataModule):
    """The three encoded splits as data loaders.

    Args:
        train: encoded training split; None: no training.
        validation: encoded validation split; None: no validation.
        test: encoded test split.
        step_size: size of a training step.
        eval_batch_size: examples per batch in validation and test; affects no metric.
        num_workers: number of processes that collate batches in advance; 0: none.
        seed: seed of the order of the examples.
        packed: whether to concatenate the texts of a training batch into one row, without padding.

    Attributes:
        start: number of steps that were done before the run was resumed.
    """

    def __init__(
        self,
        *,
        train: Training | None,
        validation: EncodedDataset | None,
        test: EncodedDataset,
        step_size: StepSize,
        eval_batch_size: int,
        num_workers: int,
        seed: int,
        packed: bool = False,
    ) -> None:
        super().__init__()
        for name, split in (("train", train), ("validation", validation), ("test", test)):
            if split is not None and not isinstance(split, TrainingWindows) and len(split.sizes) == 0:
                raise ValueError(f"the {name} split is empty")
        self.train, self.validation, self.test = train, validation, test
        self.step_size, self.eval_batch_size = step_size, eval_batch_size
        self.num_workers, self.seed, self.packed = num_workers, seed, packed
        self.start = 0

    @property
    def too_long(self) -> dict[str, int]:
        """Number of examples of each split that were truncated or dropped."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split.too_long for name, split in splits.items() if split is not None}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Endless: training length is set in steps, not epochs."""
        assert self.train is not None
        return self._loader(Collated(self.train, packed=self.packed), self._training_sampler())

    def describe_step(self, step: int, count: int = 3) -> str:
        """Describes the examples of a step for a message.

        Args:
            step: number of the step, from 1.
            count: number of examples to name.
        """
        assert self.train is not None
        indices = self._training_sampler().indices_of_step(step - 1)
        examples = [self.train[i].example for i in indices[:count]]
        names = [f"window {i.tolist()}" if e is None else e.where for i, e in zip(indices, examples, strict=False)]
        return "; ".join(names) + (f"; and {len(indices) - count} more" if len(indices) > count else "")

    def val_dataloader(self) -> DataLoader[Batch]:
        """Each validation example once."""
        assert self.validation is not None
        return self._evaluation_loader(self.validation)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Each test example once."""
        return self._evaluation_loader(self.test)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Copies the batch asynchronously."""
        return batch.to(device, non_blocking=True)

    def _training_sampler(self) -> StepSampler:
        assert self.train is not None
        start = self.start * self.step_size.accumulate
        return training_sampler(self.train, step_size=self.step_size, seed=self.seed, ranks=self._ranks(), start=start)

    def _evaluation_loader(self, split: EncodedDataset) -> DataLoader[Batch]:
        batches = [
            MicroBatch(indices, int(split.num_scored[indices].sum()))
            for indices in evaluation_batches(split.sizes, self.eval_batch_size, self._ranks())
        ]
        return self._loader(Collated(split), batches)

    def _loader(self, batches: Collated, sampler: Iterable[MicroBatch]) -> DataLoader[Batch]:
        return DataLoader(
            batches,
            sampler=sampler,
            batch_size=None,
            num_workers=self.num_workers,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
            worker_init_fn=ignore_in_worker,
        )

    def _ranks(self) -> RankSlice:
        return RankSlice() if self.trainer is None else RankSlice(self.trainer.global_rank, self.trainer.world_size)


def ignore_in_worker(_: int) -> None:
    """Ignores stop signals in data workers: a signal to the process group must not end the workers before the run."""
    ignore_signals(*STOPS)


@atexit.register
def kill_workers() -> None:
    """Kills data workers that are still alive at exit. Python would send SIGTERM, which they ignore, and wait."""
    workers = [process for process in multiprocessing.active_children() if process.daemon]
    if workers:
        restore_handlers({signal.SIGCHLD: signal.SIG_DFL})  # torch's raises an error at a killed worker
    for worker in workers:
        worker.kill()
