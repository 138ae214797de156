"""The loaders of the encoded splits, and what they refuse."""

import logging
from math import ceil

from omegaconf import DictConfig

from triptych.assembly.encode_splits import EncodingSettings, encode_evaluation, encode_training
from triptych.config import counted
from triptych.data import DataModule, LongText, Splits, TrainingWindows
from triptych.data.batches.arrays import EncodedArrays
from triptych.data.batches.datamodule import Training
from triptych.data.batches.sampler import StepSize
from triptych.tasks import Task
from triptych.training.hardware import is_on_cpu

log = logging.getLogger("triptych")

MUCH_PADDING = 0.1
"""From this share of padding on, batches are packed on CPUs. With 16 % of padding packed ones were 1.14 times as fast
there, with 29 % 1.19 times (benchmarks/speed.md); with little they are as fast as padded ones."""


def make_data_module(config: DictConfig, task: Task, splits: Splits, *, training: bool = True) -> DataModule:
    """The loaders of the splits.

    Args:
        training: whether the training split is needed, and the validation split must be there.

    Raises:
        ValueError: an empty split, or a training split that no update can be made of.
    """
    settings = EncodingSettings.of(config)
    train = encode_training(settings, task, splits.train) if training else None
    if train is not None:
        check_update(config, train)
    packed = train is not None and is_packed(config, train)
    if packed and config.batch.packed is None:
        log.info("training batches are packed, for much of them would be padding")
    has_validation = training or isinstance(splits.validation, LongText) or len(splits.validation) > 0
    return DataModule(
        train=train,
        validation=encode_evaluation(settings, task, splits.validation, "validation") if has_validation else None,
        test=encode_evaluation(settings, task, splits.test, "test"),
        step_size=step_size_of(config),
        eval_batch_size=config.batch.eval_size,
        num_workers=config.batch.num_workers,
        seed=config.seed,
        packed=packed,
    )


def step_size_of(config: DictConfig) -> StepSize:
    """What an optimizer step of a training reads."""
    return StepSize(config.batch.size, config.batch.tokens, config.trainer.accumulate_grad_batches)


def is_packed(config: DictConfig, train: Training) -> bool:
    """Whether the batches of a training are packed. If ``batch.packed`` leaves it open, they are on CPUs, where a tenth
    or more of the positions of padded batches would be padding."""
    packed: bool | None = config.batch.packed
    if packed is not None or not isinstance(train, EncodedArrays) or config.compile:
        return bool(packed)
    size = config.batch.size and max(1, config.batch.size // config.trainer.accumulate_grad_batches)
    return is_on_cpu(config.trainer.accelerator) and train.padding(size, config.batch.tokens) >= MUCH_PADDING


def check_shares(config: DictConfig, data: DataModule, world_size: int = 1) -> None:
    """Refuses a share of the batches of an evaluation in which a process would have none.

    Args:
        world_size: processes that evaluate together.

    Raises:
        ValueError: such a share.
    """
    for name, split in (("val", data.validation), ("test", data.test)):
        share = config.trainer[f"limit_{name}_batches"]
        if split is not None and isinstance(share, float):
            batches = max(ceil(len(split.sizes) / data.eval_batch_size) // world_size, 1)
            if int(share * batches) == 0:
                raise ValueError(
                    f"trainer.limit_{name}_batches={share}: no whole batch of {counted(batches, 'batch')}; "
                    "expected a larger share, a number of batches, or a smaller batch.eval_size"
                )


def check_update(config: DictConfig, train: Training) -> None:
    """Refuses a training split that no update can be made of. (Of windows of a long text, the
    sampler refuses it.)

    Raises:
        ValueError: one that is smaller than an update, or an example that is larger.
    """
    if isinstance(train, TrainingWindows):
        return
    size, tokens = config.batch.size, config.batch.tokens
    if size is not None and 0 < len(train.sizes) < size:
        raise ValueError(
            f"batch.size={size}: the training split has {len(train.sizes)} examples; expected at most that"
        )
    if tokens is not None and (longest := train.sizes.max(initial=0)) > tokens:
        example = train[int(train.sizes.argmax())].example
        where = "a window" if example is None else example.where
        raise ValueError(f"{where}: {longest} tokens, but batch.tokens={tokens}; expected at least {longest}")
