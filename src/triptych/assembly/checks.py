"""What is wrong with a training run, as far as it can be seen before the data is read: for those that train and for
those that only look. What can be seen without torch is in ``early_checks``."""
# Takes a DictConfig: it looks for what is wrong in keys and classes that any file may name.

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import torch
from lightning.pytorch.callbacks import WeightAveraging
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.compatibility import check_grid, warn_of_default_data
from triptych.assembly.early_checks import check_batch, check_root, check_targets, check_updates, check_validation
from triptych.assembly.monitors import choose_modes
from triptych.assembly.network import check_network
from triptych.config import ConfigError, build, check, precision_of, target_of
from triptych.config.overrides import check_model_choice, warn_of_learning_rate
from triptych.data import BytePairs, Pretrained
from triptych.nn import Rotary
from triptych.tasks import Infilling, LanguageModeling
from triptych.tasks.infilling import LEAST_SENTINELS
from triptych.training import NewWeightsFirst, TensorBoardLogger, check_tensorboard
from triptych.training.optimizers import AdamW, Muon, ScheduleFreeAdamW, check_schedule_free
from triptych.training.strategies import check_strategy

log = logging.getLogger("triptych")

LEAST_EPS = 1e-5
"""Of an optimizer whose state is float16: with less, schedule-free AdamW and Muon diverged within three updates."""


def check_before_data(config: DictConfig) -> None:
    """Everything that the configuration alone can show to be wrong."""
    for look in CHECKS.values():
        look(config)


def check_options(config: DictConfig) -> None:
    """The network, and whether all options of its positions change something: if not, a warning says so."""
    stacks = check_network(config).stacks
    rotary = [stack.position for stack in stacks if isinstance(stack.position, Rotary)]
    has_windows = any(window is not None for stack in stacks for window in stack.windows)
    if not has_windows and any(position.local_theta is not None for position in rotary):
        log.warning("block.position.local_theta changes nothing: no layer has a window (block.attention.windows)")
    if not any(stack.has_cross_attention for stack in stacks) and any(position.cross for position in rotary):
        log.warning("block.position.cross=true changes nothing: the network has no cross-attention")


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
    """The tokenizer, its files if it is one that exists already, and what batches and task need of it."""
    check(config, "tokenizer")
    if config.init_from is not None:  # the tokenizer is inside, and its files need not be there
        return
    build(config, "tokenizer")
    target, share = target_of(config, "tokenizer"), config.batch.merge_dropout
    if share > 0 and target not in (BytePairs, Pretrained):
        raise ConfigError(f"batch.merge_dropout={share}: this tokenizer has no merges; expected tokenizer=bpe")
    sentinels = OmegaConf.select(config, "tokenizer.num_sentinels")
    if issubclass(target_of(config, "task"), Infilling) and sentinels is not None and sentinels < LEAST_SENTINELS:
        raise ConfigError(
            f"tokenizer.num_sentinels={sentinels}: task=infilling marks three places; expected at least "
            f"{LEAST_SENTINELS}"
        )


class _ContextIsWanted(Exception):
    """A task has looked at its settings, and wants the network and the data now."""


class _Early:
    """What the configuration alone decides; for all else a task has to wait."""

    def __init__(self, **known: object) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> NoReturn:
        raise _ContextIsWanted


def check_task(config: DictConfig) -> None:
    """The settings of the task: its constructor runs as far as it gets without a network and data."""
    network = _Early(architecture=target_of(config, "model").architecture)
    with suppress(_ContextIsWanted):
        build(config, "task", {"context": _Early(max_length=config.shape.max_length, network=network)})


def check_optimizer(config: DictConfig) -> None:
    """Optimizer and schedule, together with what the trainer does with them.

    Raises:
        ConfigError: settings that do not go together.
    """
    optimizer, _ = (build(config, key) for key in ("optimizer", "scheduler"))
    if isinstance(optimizer, ScheduleFreeAdamW):
        check_schedule_free()
        for name in config.callbacks:
            if issubclass(target_of(config, f"callbacks.{name}"), WeightAveraging | NewWeightsFirst):
                raise ConfigError(
                    f"callbacks.{name}: not with optimizer=schedule_free_adamw, which has an average of its own, of "
                    "all weights from the first update on; omit one of them"
                )
    if precision_of(config) == "16-mixed" and isinstance(optimizer, AdamW) and optimizer.fused:
        raise ConfigError(
            f"trainer.precision={config.trainer.precision} scales gradients: expected optimizer.fused=false, "
            "or bf16-mixed"
        )
    has_eps = isinstance(optimizer, AdamW | Muon | ScheduleFreeAdamW)
    if precision_of(config) == "16-true" and has_eps and optimizer.eps < LEAST_EPS:
        raise ConfigError(
            f"optimizer.eps={optimizer.eps}: in trainer.precision=16-true small squares of gradients are 0, so steps "
            f"are divided by it; expected at least {LEAST_EPS}, such as 1.0e-4, or bf16-true"
        )
    if config.scheduler.warmup_steps >= config.trainer.max_steps:
        log.warning(
            "scheduler.warmup_steps=%s, but trainer.max_steps=%s: the learning rate never reaches its peak",
            config.scheduler.warmup_steps,
            config.trainer.max_steps,
        )


def check_trainer(config: DictConfig) -> None:
    """The settings of Lightning's trainer."""
    check(config, "trainer")
    if precision_of(config).startswith("transformer-engine"):
        raise ConfigError(
            f"trainer.precision={config.trainer.precision}: not tried here; expected 32-true or bf16-mixed"
        )
    check_strategy(config)  # before the optimizer, whose advice would lead to a precision that FSDP refuses
    if config.trainer.gradient_clip_algorithm not in (None, "norm"):
        raise ConfigError("trainer.gradient_clip_algorithm: gradients are clipped by their norm; expected norm")


def check_loggers_and_callbacks(config: DictConfig) -> None:
    """Loggers and callbacks."""
    choose_modes(config)  # those of a plan are chosen already
    for group in ("logger", "callbacks"):
        for name in config[group]:
            check(config, f"{group}.{name}")
    for name in config.callbacks:  # a logger may begin to write where it is built
        build(config, f"callbacks.{name}")
    if any(issubclass(target_of(config, f"logger.{name}"), TensorBoardLogger) for name in config.logger):
        check_tensorboard()
    if "checkpoints" not in config.callbacks:
        raise ConfigError(
            "callbacks.checkpoints is missing; use callbacks=[default,...], such as callbacks=[default,ema]"
        )


def check_windows(config: DictConfig) -> None:
    """Windows of long texts."""
    stride = config.batch.eval_stride
    if stride is not None and not issubclass(target_of(config, "task"), LanguageModeling):
        raise ConfigError(f"batch.eval_stride={stride}: only task=language_modeling reads in windows; expected null")


def check_accelerator(config: DictConfig) -> None:
    """Whether there is a GPU here, where one is asked for."""
    if config.trainer.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={config.trainer.accelerator}: no GPU is seen here; expected cpu or auto"
        )


def check_compiler(config: DictConfig) -> None:
    """Whether there is what compile=true needs."""
    if not config.compile:
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"compile=true: no C++ compiler {compiler}; install one, or set CXX")
    if "FSDP" in str(OmegaConf.select(config, "trainer.strategy._target_")):
        raise ConfigError("compile=true: not with trainer=fsdp; expected one process or trainer=ddp")


CHECKS: dict[str, Callable[[DictConfig], object]] = {
    "configuration": check_root,
    "classes": check_targets,
    "updates": check_updates,
    "model": check_model_choice,
    "task and model": check_grid,
    "network": check_options,
    "corpus": check_data,
    "trainer": check_trainer,
    "task": check_task,
    "tokenizer": check_tokenizer,
    "optimizer": check_optimizer,
    "learning rate": warn_of_learning_rate,
    "loggers, callbacks": check_loggers_and_callbacks,
    "accelerator": check_accelerator,
    "batch": check_batch,
    "windows": check_windows,
    "compiler": check_compiler,
    "validation": check_validation,
    "default data": warn_of_default_data,
}
"""What is looked at, in this order; the name of each is for those who read of it."""
