"""What is wrong with a training run, as far as it can be seen before the data is read: for those that train and for
those that only look."""

import logging
import os
import shutil
from collections.abc import Callable

import torch
from omegaconf import DictConfig, OmegaConf

from triptych.assembly import check_grid, check_network
from triptych.choices import check_model_choice
from triptych.config import ConfigError, build, check, check_keys, precision_of, target_of
from triptych.launch.processes import check_strategy
from triptych.tasks import LanguageModeling
from triptych.training import TensorBoardLogger, check_tensorboard

log = logging.getLogger("triptych")


def check_before_data(config: DictConfig) -> None:
    """Everything that the configuration alone can show to be wrong.

    Raises:
        ConfigError: the first that is wrong.
    """
    for look in CHECKS.values():
        look(config)


def check_root(config: DictConfig) -> None:
    """Keys and values of the typed nodes.

    Raises:
        ConfigError: an unknown key, or a value out of bounds.
    """
    schema = OmegaConf.get_type(config)
    assert schema is not None  # Hydra has typed it
    check_keys(config, schema)
    if config.seed < 0:
        raise ConfigError(f"seed={config.seed}: expected 0 or more")


def check_data(config: DictConfig) -> None:
    """The settings of the corpus; its files are another matter.

    Raises:
        ConfigError: settings that do not exist, or that leave nothing to train on or to validate with.
    """
    check(config, "data")
    for key in ("train", "validation"):  # evaluate does without
        if key in config.data and config.data[key] is None:
            raise ConfigError(f"data.{key}=null: training needs it")


def check_tokenizer(config: DictConfig) -> None:
    """The tokenizer, and its files if it is one that exists already."""
    check(config, "tokenizer")
    if config.init_from is None:  # else it is inside, and its files need not be there
        build(config, "tokenizer")


def check_task(config: DictConfig) -> None:
    """The settings of the task."""
    check(config, "task", given=("setup",))


def check_optimizer(config: DictConfig) -> None:
    """Optimizer and schedule, together with what the trainer does with them.

    Raises:
        ConfigError: settings that do not go together.
    """
    for key in ("optimizer", "scheduler"):
        build(config, key)
    if precision_of(config) == "16-mixed" and config.optimizer.fused:
        raise ConfigError(
            f"trainer.precision={config.trainer.precision} scales gradients: expected optimizer.fused=false, "
            "or bf16-mixed"
        )
    if config.scheduler.warmup_steps >= config.trainer.max_steps:
        log.warning(
            "scheduler.warmup_steps=%s, but trainer.max_steps=%s: the learning rate never reaches its peak",
            config.scheduler.warmup_steps,
            config.trainer.max_steps,
        )


def check_trainer(config: DictConfig) -> None:
    """The settings of Lightning's trainer.

    Raises:
        ConfigError: settings that do not exist, or do not go together.
    """
    check(config, "trainer")
    if precision_of(config).startswith("transformer-engine"):
        raise ConfigError(
            f"trainer.precision={config.trainer.precision}: not tried here; expected 32-true or bf16-mixed"
        )
    check_strategy(config)  # before the optimizer, whose advice would lead to a precision that FSDP refuses
    if config.trainer.gradient_clip_algorithm not in (None, "norm"):
        raise ConfigError("trainer.gradient_clip_algorithm: gradients are clipped by their norm; expected norm")
    for key in ("max_steps", "accumulate_grad_batches"):
        if config.trainer[key] < 1:
            raise ConfigError(f"trainer.{key}={config.trainer[key]}: expected at least 1")


def check_parts(config: DictConfig) -> None:
    """Loggers and callbacks.

    Raises:
        ConfigError: settings that do not exist, or no checkpoints.
    """
    for group in ("logger", "callbacks"):
        for name in config[group]:
            check(config, f"{group}.{name}")
    if any(issubclass(target_of(config, f"logger.{name}"), TensorBoardLogger) for name in config.logger):
        check_tensorboard()
    if "checkpoints" not in config.callbacks:
        raise ConfigError("callbacks.checkpoints is missing; use callbacks=[default,...]")


def check_batch(config: DictConfig) -> None:
    """Sizes of batches.

    Raises:
        ConfigError: a size that cannot be, or that cannot be split.
    """
    for key in ("size", "tokens", "eval_size"):
        if config.batch[key] is not None and config.batch[key] < 1:
            raise ConfigError(f"batch.{key}={config.batch[key]}: expected at least 1")
    stride = config.batch.eval_stride
    if stride is not None and not issubclass(target_of(config, "task"), LanguageModeling):
        raise ConfigError(f"batch.eval_stride={stride}: only task=language_modeling reads in windows; expected null")
    if stride is not None and not 1 <= stride <= config.shape.max_length:
        raise ConfigError(
            f"batch.eval_stride={stride}: windows must meet; expected 1 to shape.max_length={config.shape.max_length}"
        )
    if (config.batch.size is None) == (config.batch.tokens is None):
        both, advice = ("null", "batch.tokens=N") if config.batch.size is None else ("given", "batch.size=null")
        raise ConfigError(
            f"batch.size and batch.tokens are {both}: one of them says how large an update is; set {advice}"
        )
    parts = config.trainer.accumulate_grad_batches
    if config.batch.size is not None and config.batch.size % max(parts, 1):
        raise ConfigError(
            f"batch.size={config.batch.size} cannot be split into trainer.accumulate_grad_batches={parts} equal parts"
        )


def check_validation(config: DictConfig) -> None:
    """When the network is validated.

    Raises:
        ConfigError: never, though its best weights are wanted, or within an update.
    """
    parts, every = config.trainer.accumulate_grad_batches, config.trainer.val_check_interval
    batches = config.trainer.max_steps * parts
    if config.test_weights == "best" and every > batches:
        raise ConfigError(
            f"test_weights=best: trainer.val_check_interval={every} is beyond the {batches} batches of the training, "
            "so nothing is validated"
        )
    if isinstance(every, int) and every % max(parts, 1):
        raise ConfigError(
            f"trainer.val_check_interval={every} batches end within an update: expected a multiple of "
            f"trainer.accumulate_grad_batches={parts}"
        )


def check_accelerator(config: DictConfig) -> None:
    """Whether there is a GPU here, where one is asked for.

    Raises:
        ConfigError: there is none.
    """
    if config.trainer.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={config.trainer.accelerator}: no GPU is seen here; expected cpu or auto"
        )


def check_compiler(config: DictConfig) -> None:
    """Whether there is what compile=true needs.

    Raises:
        ConfigError: no C++ compiler, or a strategy that it was not tried with.
    """
    if not config.compile:
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"compile=true: no C++ compiler {compiler}; install one, or set CXX")
    if "FSDP" in str(OmegaConf.select(config, "trainer.strategy._target_")):
        raise ConfigError("compile=true: not with trainer=fsdp; expected one process or trainer=ddp")


CHECKS: dict[str, Callable[[DictConfig], object]] = {
    "configuration": check_root,
    "model": check_model_choice,
    "task and model": check_grid,
    "network": check_network,
    "corpus": check_data,
    "trainer": check_trainer,
    "task": check_task,
    "tokenizer": check_tokenizer,
    "optimizer": check_optimizer,
    "loggers, callbacks": check_parts,
    "accelerator": check_accelerator,
    "batch": check_batch,
    "compiler": check_compiler,
    "validation": check_validation,
}
"""What is looked at, in this order; the name of each is for those who read of it."""
