"""Fills in what is null in the network's configuration: parts from ``block`` and the task, vocabulary and outputs from
the data."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import math

from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import PARTS, ConfigError, error_prefix, target_of
from triptych.data import CorpusInfo

SIGNALS = {"audio": "audio_embedding", "image": "image_embedding"}
"""The node that embeds each non-text field of an example."""


def choose_parts(config: DictConfig) -> None:
    """Fills in the parts of each stack from ``block``, and the head from the task."""
    task, network, model = target_of(config, "task"), target_of(config, "model"), config.model
    architecture, kind = network.architecture, "classes"
    if architecture not in task.pooling:
        with error_prefix():
            task.check_architecture(architecture, config.task)
    stacks = [model[name] for name in network.stack_names]
    heads = [name for name in ("head", "source_head") if name in model]
    if (node := signal_node(config)) is not None:
        has_towers = len(heads) > 1
        is_alone = not has_towers and (
            architecture == "encoder_only" or (architecture == "decoder_only" and not task.generates_text)
        )
        model["embedding" if is_alone else "source_embedding"] = config[node]
        if node == "image_embedding":
            has_text = len(stacks) == 1 and not is_alone
            stacks[0].max_length = 1 + count_patches(config) + (config.shape.max_length if has_text else 0)
    if task.predicts_tokens or task.pooling[architecture] == "none":
        kind = "tokens" if task.predicts_tokens else "tags"
    for stack in stacks:
        for part in PARTS:
            if stack[part] is None:
                stack[part] = config.block[part]
    for name in heads:
        own = task.pooling[architecture]
        pool = model[name].pooling or OmegaConf.select(config, f"heads.{kind}.pooling") or own
        if (pool == "none") != (own == "none"):
            key = f"model.{name}.pooling" if model[name].pooling else f"heads.{kind}.pooling"
            outputs, expected = ("each position", "none") if own == "none" else ("each text", "first, last or mean")
            raise ConfigError(f"{key}={pool}: task={task.name} has outputs for {outputs}; expected {expected}, or null")
        with open_dict(config.heads):
            model[name] = OmegaConf.merge(config.heads[kind], model[name])
        model[name].pooling = pool
    if model.get("tie_word_embeddings", False) is None:
        model.tie_word_embeddings = (
            task.predicts_tokens and "vocab_size" in model.embedding and config.block.tie_word_embeddings
        )


def signal_node(config: DictConfig) -> str | None:
    """The node that embeds audio or images, if the data have some; None: text."""
    columns = getattr(target_of(config, "data"), "columns", ()) if "_target_" in config.data else ()
    reads = target_of(config, "task").reads
    return next((node for column, node in SIGNALS.items() if column in columns and column in reads), None)


def count_patches(config: DictConfig) -> int:
    """The number of patches per image."""
    sides = zip(config.image_embedding.image_size, config.image_embedding.patch_size, strict=False)
    return math.prod(image // max(patch, 1) for image, patch in sides)


def complete_config(config: DictConfig, vocab_size: int, corpus: CorpusInfo) -> None:
    """Fills in the vocabulary size and the number of outputs.

    Args:
        config: configuration after ``choose_parts``.
        vocab_size: vocabulary size of the tokenizer.
    """
    check_parts_chosen(config)
    task, head = target_of(config, "task"), config.model.head
    if config.shape.vocab_size is None and ("vocab_size" in config.model.embedding or task.predicts_tokens):
        config.shape.vocab_size = vocab_size + task.num_extra_tokens(config.task)
    if head.num_outputs is None:
        head.num_outputs = task.num_outputs(config.shape.vocab_size, corpus)


def check_parts_chosen(config: DictConfig) -> None:
    """Raises ``ValueError`` if ``choose_parts`` was not called."""
    stacks = (config.model[name] for name in target_of(config, "model").stack_names)
    if any(stack[part] is None for stack in stacks for part in PARTS):
        raise ValueError("the parts of the stacks are not chosen: call choose_parts(config) first")
