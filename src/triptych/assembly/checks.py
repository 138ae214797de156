"""The checks of a run before data are read, for train and the doctor. Checks without torch are in ``early_checks``."""
# Takes a DictConfig: it checks keys and classes that any file may name.

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
from triptych.assembly.make_task import check_network
from triptych.assembly.monitors import choose_modes
from triptych.config import ConfigError, build, check, precision_of, target_of
from triptych.config.overrides import check_model_choice, warn_of_learning_rate
from triptych.data import BPE, PretrainedTokenizer
from triptych.nn import Rotary
from triptych.tasks import Infilling, LanguageModeling
from triptych.tasks.infilling import LEAST_SENTINELS
from triptych.training import FreezePretrained, TensorBoardLogger, check_tensorboard
from triptych.training.optimizers import AdamW, Muon, ScheduleFreeAdamW, check_schedule_free
from triptych.training.strategies import check_strategy

log = logging.getLogger("triptych")

LEAST_EPS = 1e-5
"""Minimum eps with float16 optimizer state; below it, schedule-free AdamW and Muon diverged within three steps."""


def check_before_data(config: DictConfig) -> None:
    """Runs all checks of the configuration."""
    for look in CHECKS.values():
        look(config)


def check_options(config: DictConfig) -> None:
    """Checks the network, and warns of position options that have no effect."""
    stacks = check_network(config).stacks
    rotary = [stack.position for stack in stacks if isinstance(stack.position, Rotary)]
    has_windows = any(window is not None for stack in stacks for window in stack.windows)
    if not has_windows and any(position.local_theta is not None for position in rotary):
        log.warning("block.position.local_theta has no effect: no layer has a window (block.attention.sliding_windows)")
    if not any(stack.has_cross_attention for stack in stacks) and any(position.cross for position in rotary):
        log.warning("block.position.rotate_cross_attention=true has no effect: the network has no cross-attention")


def check_data(config: DictConfig) -> None:
    """Checks the settings of the corpus, not its files."""
    check(config, "data")
    for key in ("train", "validation"):  # optional in evaluate
        if key in config.data and config.data[key] is None:
            raise ConfigError(f"data.{key}=null: required for training")


def check_tokenizer(config: DictConfig) -> None:
    """Checks the tokenizer, its files if it is pretrained, and what batches and the task need."""
    check(config, "tokenizer")
    if config.init_from is not None:  # the checkpoint contains the tokenizer, so its files may be missing
        return
    build(config, "tokenizer")
    target, share = target_of(config, "tokenizer"), config.batch.bpe_dropout
    if share > 0 and target not in (BPE, PretrainedTokenizer):
        raise ConfigError(f"batch.bpe_dropout={share}: this tokenizer has no merges; expected tokenizer=bpe")
    sentinels = OmegaConf.select(config, "tokenizer.num_sentinels")
    if issubclass(target_of(config, "task"), Infilling) and sentinels is not None and sentinels < LEAST_SENTINELS:
        raise ConfigError(
            f"tokenizer.num_sentinels={sentinels}: task=infilling needs three sentinels; expected at least "
            f"{LEAST_SENTINELS}"
        )


class _ContextIsWanted(Exception):
    """Raised when the constructor of a task, after checking its settings, accesses the network or data."""


class _Early:
    """Attributes known from the configuration; any other raises ``_ContextIsWanted``."""

    def __init__(self, **known: object) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> NoReturn:
        raise _ContextIsWanted


def check_task(config: DictConfig) -> None:
    """Checks the settings of the task: runs its constructor until it needs the network or data."""
    network = _Early(architecture=target_of(config, "model").architecture)
    with suppress(_ContextIsWanted):
        build(config, "task", {"context": _Early(max_length=config.shape.max_length, network=network)})


def check_optimizer(config: DictConfig) -> None:
    """Checks optimizer and scheduler, and their combination with the trainer."""
    optimizer, _ = (build(config, key) for key in ("optimizer", "scheduler"))
    if isinstance(optimizer, ScheduleFreeAdamW):
        check_schedule_free()
        for name in config.callbacks:
            if issubclass(target_of(config, f"callbacks.{name}"), WeightAveraging | FreezePretrained):
                raise ConfigError(
                    f"callbacks.{name}: not supported with optimizer=schedule_free_adamw, which already averages all "
                    "weights from the first step on. Omit one of them"
                )
    if precision_of(config) == "16-mixed" and isinstance(optimizer, AdamW) and optimizer.fused:
        raise ConfigError(
            f"trainer.precision={config.trainer.precision} scales gradients: expected optimizer.fused=false, "
            "or bf16-mixed"
        )
    has_eps = isinstance(optimizer, AdamW | Muon | ScheduleFreeAdamW)
    if precision_of(config) == "16-true" and has_eps and optimizer.eps < LEAST_EPS:
        raise ConfigError(
            f"optimizer.eps={optimizer.eps}: with trainer.precision=16-true small squared gradients round to 0, so "
            f"steps are divided by eps; expected at least {LEAST_EPS}, such as 1.0e-4, or bf16-true"
        )
    warmup, steps = config.scheduler.warmup_steps, config.trainer.max_steps
    if warmup >= steps:
        text = "scheduler.warmup_steps=%s, but trainer.max_steps=%s: the learning rate never reaches its peak"
        log.warning(text, warmup, steps)


def check_trainer(config: DictConfig) -> None:
    """Checks the settings of Lightning's Trainer."""
    check(config, "trainer")
    if precision_of(config).startswith("transformer-engine"):
        raise ConfigError(
            f"trainer.precision={config.trainer.precision}: not supported; expected 32-true or bf16-mixed"
        )
    check_strategy(config)  # before the optimizer, which may suggest a precision that FSDP does not support
    if config.trainer.gradient_clip_algorithm not in (None, "norm"):
        raise ConfigError("trainer.gradient_clip_algorithm: gradients are clipped by norm only; expected norm")


def check_loggers_and_callbacks(config: DictConfig) -> None:
    """Checks loggers and callbacks."""
    choose_modes(config)  # no effect on the configuration of a plan
    for group in ("logger", "callbacks"):
        for name in config[group]:
            check(config, f"{group}.{name}")
    for name in config.callbacks:  # loggers are not built, because they may write files
        build(config, f"callbacks.{name}")
    if any(issubclass(target_of(config, f"logger.{name}"), TensorBoardLogger) for name in config.logger):
        check_tensorboard()
    if "checkpoints" not in config.callbacks:
        raise ConfigError(
            "callbacks.checkpoints is missing; expected callbacks=[default,...], such as callbacks=[default,ema]"
        )


def check_windows(config: DictConfig) -> None:
    """Checks that ``batch.eval_stride`` is only set for language modeling."""
    stride = config.batch.eval_stride
    if stride is not None and not issubclass(target_of(config, "task"), LanguageModeling):
        raise ConfigError(f"batch.eval_stride={stride}: only task=language_modeling uses windows; expected null")


def check_accelerator(config: DictConfig) -> None:
    """Checks that a GPU is available if the configuration needs one."""
    accelerator = config.trainer.accelerator
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(f"trainer.accelerator={accelerator}: no GPU is available; expected cpu or auto")


def check_compiler(config: DictConfig) -> None:
    """Checks the requirements of compile=true."""
    if not config.compile:
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"compile=true: no C++ compiler {compiler}. Install one, or set CXX")
    if "FSDP" in str(OmegaConf.select(config, "trainer.strategy._target_")):
        raise ConfigError("compile=true: not supported with trainer=fsdp; expected one process or trainer=ddp")


CHECKS: dict[str, Callable[[DictConfig], object]] = {
    "configuration": check_root,
    "classes": check_targets,
    "steps": check_updates,
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
"""The checks in order, by displayed name."""
