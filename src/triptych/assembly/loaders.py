"""The loaders of the encoded splits, and their checks."""

import logging
from math import ceil

from triptych.assembly.encode_splits import encode_evaluation, encode_training
from triptych.config import counted
from triptych.config.run_settings import LoaderSettings, RunSettings, TrainerSettings
from triptych.data import DataModule, LongText, Splits, TrainingWindows
from triptych.data.batches.arrays import EncodedArrays
from triptych.data.batches.sampler import StepSize
from triptych.data.batches.windows import Training
from triptych.tasks import Task
from triptych.training.hardware import is_on_cpu

log = logging.getLogger("triptych")

MUCH_PADDING = 0.1
"""Minimum fraction of padding for packing on CPUs. Packed batches were 1.14 times as fast with 16 % padding and 1.19
times with 29 % (benchmarks/speed.md); with little padding they are equally fast."""


def make_data_module(settings: RunSettings, task: Task, splits: Splits, *, training: bool = True) -> DataModule:
    """The loaders of the splits.

    Args:
        training: whether the training split is needed and the validation split is required.

    Raises:
        ValueError: a split is empty, or the training split is too small for a step.
    """
    encoding, loader = settings.encoding, settings.loader
    train = encode_training(encoding, task, splits.train) if training else None
    if train is not None:
        check_update(loader, train)
    packed = train is not None and is_packed(settings, train)
    if packed and loader.packing is None:
        log.info("training batches are packed, because much of them would be padding")
    has_validation = training or isinstance(splits.validation, LongText) or len(splits.validation) > 0
    return DataModule(
        train=train,
        validation=encode_evaluation(encoding, task, splits.validation, "validation") if has_validation else None,
        test=encode_evaluation(encoding, task, splits.test, "test"),
        step_size=step_size_of(settings),
        eval_batch_size=loader.eval_batch_size,
        num_workers=loader.num_workers,
        seed=settings.seed,
        packed=packed,
    )


def step_size_of(settings: RunSettings) -> StepSize:
    """The size of an optimizer step."""
    return StepSize(settings.loader.global_size, settings.loader.max_tokens, settings.trainer.accumulate_grad_batches)


def is_packed(settings: RunSettings, train: Training) -> bool:
    """Whether training batches are packed. With ``batch.packing=null``, they are on CPUs if padding would be at least
    ``MUCH_PADDING``."""
    loader, trainer = settings.loader, settings.trainer
    if loader.packing is not None or not isinstance(train, EncodedArrays) or settings.compile:
        return bool(loader.packing)
    size = loader.global_size and max(1, loader.global_size // trainer.accumulate_grad_batches)
    return is_on_cpu(trainer.accelerator) and train.padding(size, loader.max_tokens) >= MUCH_PADDING


def check_rank_shares(trainer: TrainerSettings, data: DataModule, world_size: int = 1) -> None:
    """Raises ``ValueError`` if a fraction of the evaluation batches leaves a process without any."""
    shares = {"val": trainer.limit_val_batches, "test": trainer.limit_test_batches}
    for (name, share), split in zip(shares.items(), (data.validation, data.test), strict=True):
        if split is not None and isinstance(share, float):
            batches = max(ceil(len(split.sizes) / data.eval_batch_size) // world_size, 1)
            if int(share * batches) == 0:
                raise ValueError(
                    f"trainer.limit_{name}_batches={share}: less than one of {counted(batches, 'batch')}; "
                    "expected a larger fraction, a number of batches, or a smaller batch.eval_batch_size"
                )


def check_update(loader: LoaderSettings, train: Training) -> None:
    """Raises ``ValueError`` if the training split is too small for a step. (The sampler checks windows.)"""
    if isinstance(train, TrainingWindows):
        return
    size, tokens = loader.global_size, loader.max_tokens
    if size is not None and 0 < len(train.sizes) < size:
        raise ValueError(
            f"batch.global_size={size}: larger than the training split; expected at most {len(train.sizes)}"
        )
    if tokens is not None and (longest := train.sizes.max(initial=0)) > tokens:
        example = train[int(train.sizes.argmax())].example
        where = "a window" if example is None else example.where
        raise ValueError(f"{where}: {longest} tokens, but batch.max_tokens={tokens}; expected at least {longest}")
