"""Builds a task and its network from a configuration.

Tested by tests/config/test_parts.py and tests/config/test_conf.py.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

from collections.abc import Sequence
from typing import cast

import torch
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.choose_parts import check_parts_chosen
from triptych.config import PARTS, ConfigError, build, check
from triptych.config.run_settings import RunSettings
from triptych.data import CorpusInfo, Tokenizer
from triptych.nn import Embedding, Network
from triptych.nn.device_copy import copy_with_tensors
from triptych.tasks import Task, TaskContext
from triptych.training import TrainingModule


def make_task(settings: RunSettings, tokenizer: Tokenizer, corpus: CorpusInfo, network: Network | None = None) -> Task:
    """Builds the task.

    Args:
        network: its network; None: a new one, whose weights depend only on the seed.

    Raises:
        ConfigError: shape.vocab_size is smaller than the tokenizer's vocabulary. (It may be larger.)
    """
    extra = settings.target("task").num_extra_tokens(settings.encoding.task)
    if settings.vocab_size is not None and settings.vocab_size < tokenizer.vocab_size + extra:  # None: images
        besides = f", and the task {extra} more" if extra else ""
        raise ConfigError(
            f"shape.vocab_size={settings.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens{besides}"
            "; expected shape.vocab_size=null for the size of the tokenizer"
        )
    torch.manual_seed(settings.seed)
    context = TaskContext(
        network=network or settings.build("model"),
        tokenizer=tokenizer,
        corpus=corpus,
        seed=settings.seed,
        max_length=settings.max_length,
        truncates=settings.encoding.too_long != "error",
        precision=settings.trainer.precision,
    )
    return cast(Task, settings.build("task", {"context": context}))


def make_module(
    settings: RunSettings, task: Task, *, has_one_shape: bool = False, new_weights: Sequence[str] = ()
) -> TrainingModule:
    """The LightningModule of a task.

    Args:
        has_one_shape: whether all batches have the same shape.
        new_weights: see ``TrainingModule``.
    """
    return TrainingModule(
        task,
        settings.build("optimizer"),
        settings.build("scheduler"),
        skips_not_finite=settings.on_nonfinite == "skip",
        compiles=settings.compile,
        has_one_shape=has_one_shape,
        new_weights=new_weights,
    )


def without_values(network: Network) -> Network:
    """A copy on the meta device, which has shapes but no data."""
    return copy_with_tensors(network, lambda tensor: torch.empty_like(tensor, device="meta"))


def check_network(config: DictConfig) -> Network:
    """Builds the network on the meta device, to check its shapes at no cost.

    Args:
        config: configuration after ``choose_parts``.

    Raises:
        ConfigError: a shape is invalid, or a stack has fewer positions than shape.max_length.
    """
    check_parts_chosen(config)
    trial = config.copy()
    OmegaConf.set_readonly(trial, False)  # that of a plan is read-only
    if trial.shape.vocab_size is None:
        trial.shape.vocab_size = 8
    if trial.model.head.num_outputs is None:
        trial.model.head.num_outputs = trial.shape.vocab_size
    for key in (*(f"block.{part}" for part in PARTS), *(f"heads.{kind}" for kind in trial.heads)):
        given = [name for name in ("d_model", "num_outputs", "pooling") if name not in OmegaConf.select(trial, key)]
        check(trial, key, given)  # before the copies in the stacks
    with torch.device("meta"):
        network: Network = build(trial, "model")
    reads_text = isinstance(network.embedding, Embedding)
    if reads_text and network.max_positions is not None and network.max_positions < trial.shape.max_length:
        raise ConfigError(
            f"shape.max_length={trial.shape.max_length}, but a stack has max_length={network.max_positions}; "
            f"expected at most {network.max_positions}"
        )
    return network
