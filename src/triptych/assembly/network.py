"""From a configuration to a task with its network."""

import copy
import math
from typing import cast

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from torch.nn import Parameter

from triptych.config import PARTS, ConfigError, build, check, refusing, target_of
from triptych.data import (
    CorpusFacts,
    Tokenizer,
)
from triptych.nn import Embedding, Network
from triptych.tasks import Setup, Task

SIGNALS = {"sound": "frames", "image": "patches"}
"""What reads each field of an example that is no text: the names of nodes of the configuration."""


def complete(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusFacts) -> None:
    """Fills in what the task, the tokenizer and the corpus decide, so that the configuration says it all."""
    task = target_of(config, "task")
    if config.shape.vocab_size is None and ("vocab_size" in config.model.embedding or task.predicts_tokens):
        config.shape.vocab_size = tokenizer.vocab_size + task.num_extra_tokens(config.task)
    head = config.model.head
    if head.num_outputs is None:
        head.num_outputs = task.num_outputs(config.shape.vocab_size, corpus)
    choose_parts(config)


def choose_parts(config: DictConfig) -> None:
    """Fills in what is null of the network: the parts of each stack by those of ``block``, and the head by the task."""
    task, network, model = target_of(config, "task"), target_of(config, "model"), config.model
    architecture, kind = network.architecture, "classes"
    if architecture not in task.pools:
        with refusing():
            task.check_architecture(architecture, config.task)
    stacks = [model[name] for name in network.stack_names]
    heads = [name for name in ("head", "source_head") if name in model]
    if (node := signal_node(config)) is not None:
        has_towers = len(heads) > 1
        is_alone = not has_towers and (
            architecture == "encoder_only" or (architecture == "decoder_only" and not task.writes_text)
        )
        model["embedding" if is_alone else "source_embedding"] = config[node]
        if node == "patches":
            has_text = len(stacks) == 1 and not is_alone
            stacks[0].max_length = 1 + count_patches(config) + (config.shape.max_length if has_text else 0)
    if task.predicts_tokens or task.pools[architecture] == "none":
        kind = "tokens" if task.predicts_tokens else "tags"
    for stack in stacks:
        for part in PARTS:
            if stack[part] is None:
                stack[part] = config.block[part]
    for name in heads:
        own = task.pools[architecture]
        pool = model[name].pool or OmegaConf.select(config, f"heads.{kind}.pool") or own
        if (pool == "none") != (own == "none"):
            key = f"model.{name}.pool" if model[name].pool else f"heads.{kind}.pool"
            outputs, expected = ("each position", "none") if own == "none" else ("each text", "first, last or mean")
            raise ConfigError(f"{key}={pool}: task={task.name} has outputs for {outputs}; expected {expected}, or null")
        with open_dict(config.heads):
            model[name] = OmegaConf.merge(config.heads[kind], model[name])
        model[name].pool = pool
    if model.get("tie_output", False) is None:
        model.tie_output = task.predicts_tokens and "vocab_size" in model.embedding and config.block.tie_output


def signal_node(config: DictConfig) -> str | None:
    """Of the configuration, what reads the data that are no texts; None: they are."""
    columns = getattr(target_of(config, "data"), "columns", ()) if "_target_" in config.data else ()
    reads = target_of(config, "task").reads
    return next((node for column, node in SIGNALS.items() if column in columns and column in reads), None)


def count_patches(config: DictConfig) -> int:
    """Of an image."""
    sides = zip(config.patches.image_size, config.patches.patch_size, strict=False)
    return math.prod(image // max(patch, 1) for image, patch in sides)


def make_task(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusFacts, network: Network | None = None) -> Task:
    """The task on a network.

    Args:
        network: that the configuration describes; None: a new one, whose weights are a function of the seed.

    Raises:
        ConfigError: a vocabulary that is smaller than the tokenizer's. (A larger one has rows that are never read.)
    """
    extra = target_of(config, "task").num_extra_tokens(config.task)
    if (
        config.shape.vocab_size is not None and config.shape.vocab_size < tokenizer.vocab_size + extra
    ):  # None: of images
        besides = f", and the task {extra} besides" if extra else ""
        raise ConfigError(
            f"shape.vocab_size={config.shape.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens{besides}"
            "; leave shape.vocab_size=null to take as many"
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


def without_values(network: Network) -> Network:
    """A copy on the meta device, which has shapes alone and costs nothing."""
    shapes: dict[int, Tensor] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        shape = torch.empty_like(tensor, device="meta")
        shapes[id(tensor)] = Parameter(shape, tensor.requires_grad) if isinstance(tensor, Parameter) else shape
    return copy.deepcopy(network, shapes)


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
    for key in (*(f"block.{part}" for part in PARTS), *(f"heads.{kind}" for kind in trial.heads)):
        given = [name for name in ("d_model", "num_outputs", "pool") if name not in OmegaConf.select(trial, key)]
        check(trial, key, given)  # before the copies in the stacks
    choose_parts(trial)
    with torch.device("meta"):
        network: Network = build(trial, "model")
    reads_text = isinstance(network.embedding, Embedding)
    if reads_text and network.room is not None and network.room < trial.shape.max_length:
        raise ConfigError(
            f"shape.max_length={trial.shape.max_length}, but a stack has max_length={network.room}; "
            "expected no more tokens than positions"
        )
    return network
