"""From a configuration to a task with its network."""

from typing import cast

import torch
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError, build, target_of
from triptych.data import (
    CorpusFacts,
    Tokenizer,
)
from triptych.nn import Embedding, Network
from triptych.tasks import Setup, Task


def complete(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusFacts) -> None:
    """Fills in what the task, the tokenizer and the corpus decide, so that the configuration says it all."""
    task = target_of(config, "task")
    if config.shape.vocab_size is None and "vocab_size" in config.model.embedding:
        config.shape.vocab_size = tokenizer.vocab_size
    head = config.model.head
    if head.num_outputs is None:
        head.num_outputs = task.num_outputs(config.shape.vocab_size, corpus)
    choose_head(config)


def choose_head(config: DictConfig) -> None:
    """Fills in what the task decides of the head, as far as it is null."""
    task, architecture = target_of(config, "task"), target_of(config, "model").architecture
    kind = "tokens" if task.predicts_tokens else "tags" if task.pools[architecture] == "none" else "classes"
    for key, value in {"pool": task.pools[architecture], **config.heads[kind]}.items():
        if config.model.head[key] is None:
            config.model.head[key] = value
    if config.model.tie_output is None:
        config.model.tie_output = task.predicts_tokens and config.block.tie_output


def make_task(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusFacts, network: Network | None = None) -> Task:
    """The task on a network.

    Args:
        corpus: what is known of the corpus.
        network: that the configuration describes; None: a new one, whose weights are a function of the seed.

    Raises:
        ConfigError: a vocabulary that is smaller than the tokenizer's. (A larger one has rows that are never read.)
    """
    if config.shape.vocab_size is not None and config.shape.vocab_size < tokenizer.vocab_size:  # None: of images
        raise ConfigError(
            f"shape.vocab_size={config.shape.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens; "
            "leave shape.vocab_size=null to take the tokenizer's"
        )
    torch.manual_seed(config.seed)
    setup = Setup(
        network=network or build(config, "model"),
        tokenizer=tokenizer,
        corpus=corpus,
        optimizer=build(config, "optimizer"),
        schedule=build(config, "scheduler"),
        seed=config.seed,
        max_length=config.shape.max_length,
        truncates=config.batch.too_long != "error",
        skips_not_finite=config.not_finite == "skip",
        precision=str(config.trainer.precision),
    )
    return cast(Task, build(config, "task", {"setup": setup}))


def check_network(config: DictConfig) -> Network:
    """Builds the network on the meta device, which costs nothing: shapes that cannot be are refused at once.

    Raises:
        ConfigError: such a shape, or a stack with fewer positions than the texts may have tokens.
    """
    trial = config.copy()
    OmegaConf.set_readonly(trial, False)  # a plan's can be read only
    if trial.shape.vocab_size is None:
        trial.shape.vocab_size = 8
    if trial.model.head.num_outputs is None:
        trial.model.head.num_outputs = trial.shape.vocab_size
    choose_head(trial)
    with torch.device("meta"):
        network: Network = build(trial, "model")
    reads_text = isinstance(network.embedding, Embedding)
    if reads_text and network.room is not None and network.room < trial.shape.max_length:
        raise ConfigError(
            f"shape.max_length={trial.shape.max_length}, but a stack has max_length={network.room}; "
            "expected no more tokens than positions"
        )
    return network
