"""From a configuration, or a checkpoint, to a task with its network and its data."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import lightning as L
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from triptych.activations import PRECISIONS
from triptych.config import ConfigError, RunError, build, nearest, of_earlier_run, suggestion, target_of
from triptych.data import (
    CorpusFacts,
    DataModule,
    Encoded,
    EncodedList,
    EncodedSet,
    Example,
    Learned,
    LongText,
    Shard,
    SpecialTokens,
    Splits,
    Tokenizer,
    TrainableTokenizer,
    TrainingWindows,
    Windows,
    learned,
    shard_of,
)
from triptych.data.example import without_collection
from triptych.data.loading import Training
from triptych.data.tokenizer_cache import sha256_of
from triptych.data.windows import Layout, windows_of
from triptych.devices import arithmetic
from triptych.nn import Embedding, Network, PatchEmbedding
from triptych.tasks import Denoising, LanguageModeling, Setup, Task
from triptych.tasks.denoising import objective_for
from triptych.tasks.generative import GenerativeTask
from triptych.training import damage_of, newest_good, read_checkpoint

log = logging.getLogger("triptych")

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "translation": ("target",),
    "classification": ("label",),
    "similarity": ("pair", "score"),
    "tagging": ("words", "tags"),
    "question_answering": ("pair", "answers"),
}
"""What a task needs beside a text. A corpus of tables that can have it has a setting for it: the column."""


def check_grid(config: DictConfig) -> None:
    """Refuses what the configuration alone shows to be impossible, before any data is read.

    Raises:
        ConfigError: an architecture that cannot do the task, or a corpus that cannot serve it.
    """
    task, architecture = target_of(config, "task"), target_of(config, "model").architecture
    if architecture in task.refusals:
        raise ConfigError(f"task={task.name} on model={architecture}: {task.refusals[architecture]}")
    if issubclass(task, Denoising):
        try:
            objective_for(architecture, OmegaConf.select(config, "task.objective"))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    check_corpus(config)


def check_corpus(config: DictConfig) -> None:
    """Refuses a corpus that cannot serve the task, or whose inputs the network does not read.

    Raises:
        ConfigError: such a corpus.
    """
    task, corpus = target_of(config, "task").name, target_of(config, "data")
    architecture, embedding = target_of(config, "model").architecture, target_of(config, "model.embedding")
    if task not in corpus.tasks:
        raise ConfigError(
            f"task={task}: data={corpus.__name__} serves {', '.join(corpus.tasks)}; choose another task, or other data"
        )
    for key in COLUMNS.get(task, ()):
        if key in config.data and config.data[key] is None:
            raise ConfigError(f"task={task}: data.{key}=null; expected the column of the data that has it")
    if corpus.has_images and not issubclass(embedding, PatchEmbedding):
        raise ConfigError(
            f"data={corpus.__name__} has images, and model={architecture} reads texts; choose model=vit-style, or "
            "model=decoder_only model/embedding=patches"
        )
    if issubclass(embedding, PatchEmbedding) and not corpus.has_images:
        raise ConfigError(f"data={corpus.__name__} has texts, and model={architecture} reads images; use data=digits")


def train_tokenizer(config: DictConfig, splits: Splits) -> Tokenizer:
    """The configured tokenizer, trained on the texts, pairs and targets of the training split. (Of images there are
    none: it has its special tokens, and nobody uses it.)"""
    kind: TrainableTokenizer = build(config, "tokenizer")
    if isinstance(train := splits.train, LongText):
        texts = (example.text for example in train)
        return learned(kind, texts, (), train.sha256) if isinstance(kind, Learned) else kind.train(texts)
    examples = [example for example in train if example.image is None]
    sources = [text for example in examples for text in (example.text, example.pair) if text is not None]
    targets = [example.target for example in examples if example.target is not None]
    if isinstance(kind, Learned):
        return learned(kind, sources, targets, sha256_of(sources, targets))
    return kind.train(sources, targets)


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


def check_compiled(config: DictConfig, task: Task, train: object) -> None:
    """Whether the batches have the few shapes that compile=true is for.

    Args:
        config: of the training.
        task: of its network.
        train: its training split.

    Raises:
        ConfigError: they have many.
    """
    if config.compile and task.image_shape is None and not isinstance(train, LongText):
        raise ConfigError(
            "compile=true: these batches have many shapes, each of which would be compiled; expected false, or "
            "windows of a long text, or images"
        )


def make_task(config: DictConfig, tokenizer: Tokenizer, corpus: CorpusFacts, network: Network | None = None) -> Task:
    """The task on a network.

    Args:
        config: the complete configuration.
        tokenizer: of the texts.
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


def encode_training(config: DictConfig, task: Task, examples: Sequence[Example] | LongText) -> Training:
    """The training split as the network will see it: line by line, or windows of a long text.

    Raises:
        ValueError: a text that is too long or too short, an id beyond the vocabulary, or fewer examples than an update.
        RunError: the tokens of a long text cannot be written.
    """
    if isinstance(examples, LongText):
        texts = [shard.ids for shard in shards_of(task, examples, "train")]
        weights = [source.weight for source in examples.sources]
        return TrainingWindows(texts, weights, length=task.max_length, encode=stream_layout(task))
    lines = encode_lines(config, task, examples, "train")
    check_update(config, lines)
    return lines


def encode_evaluation(config: DictConfig, task: Task, examples: Sequence[Example] | LongText, name: str) -> EncodedSet:
    """A split as the network will be evaluated on it: line by line, or in windows of a long text.

    Raises:
        ValueError: a text that is too long or too short; an id beyond the vocabulary.
        RunError: the tokens of a long text cannot be written.
    """
    if not isinstance(examples, LongText):
        return encode_lines(config, task, examples, name)
    shards = shards_of(task, examples, name)
    stride = config.batch.eval_stride or task.max_length
    windows = Windows(
        [shard.ids for shard in shards],
        ends=[shard.ends for shard in shards],
        length=task.max_length,
        stride=stride,
        encode=stream_layout(task),
    )
    log.info("%s: %s windows of %s tokens, stride %s", name, f"{len(windows.sizes):,}", task.max_length, stride)
    return windows


def shards_of(task: Task, text: LongText, name: str) -> list[Shard]:
    """The tokens of the sources of a long text."""
    shards = [shard_of(source, task.tokenizer, name) for source in text.sources]
    warn_of_unknown(sum(shard.num_unknown for shard in shards), sum(len(shard.ids) for shard in shards), name)
    return shards


def stream_layout(task: Task) -> Layout:
    """How the task lays out a window of a long text."""
    assert isinstance(task, LanguageModeling)  # no other reads them
    return task.encode_window


@without_collection()
def encode_lines(config: DictConfig, task: Task, examples: Sequence[Example], name: str) -> EncodedList:
    """A split line by line. Lines that are too long are refused, truncated or dropped; but in the evaluation of a
    decoder-only language model, if they are not refused, each is scored as a whole, in overlapping windows.

    Raises:
        ValueError: an example that is too long, where batch.too_long=error; an id beyond the vocabulary.
    """
    if task.image_shape is not None:
        return EncodedList(task.encode(examples))
    columns, console = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()), Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        progress.add_task(f"laying out {name}: {len(examples):,} examples", total=None)
        lines = task.encode(examples)
    check_ids(lines, task.tokenizer.vocab_size)
    stride = config.batch.eval_stride or task.max_length
    if config.batch.too_long != "error" and name != "train" and task.scores_in_windows:
        kept = [window for item in lines for window in windows_of(item, task.max_length, stride)]
        done = f"scored in windows of that many, stride {stride}"
    elif config.batch.too_long == "drop" and name == "train":
        kept = [item for item in lines if item.longest <= task.max_length]
        done = "dropped"
        if lines and not kept:
            raise ValueError(
                f"batch.too_long=drop: each of the {len(lines):,} training examples has more than "
                f"shape.max_length={task.max_length} tokens"
            )
    else:
        kept, done = task.fit(lines), "truncated"
    if (unk := task.tokenizer.special.unk) is not None:
        tokens = np.concatenate([np.empty(0, np.int64), *(item.tokens for item in lines)])
        warn_of_unknown(int((tokens == unk).sum()), len(tokens), name)
    too_long = sum(item.longest > task.max_length for item in lines)
    if too_long:
        log.warning(
            "%s of %s %s examples have more than shape.max_length=%s tokens and are %s",
            f"{too_long:,}",
            f"{len(lines):,}",
            name,
            task.max_length,
            done,
        )
    return EncodedList(kept, too_long=too_long)


def check_ids(items: Sequence[Encoded], vocab_size: int) -> None:
    """Refuses ids that the network has no vector for. (A GPU would only say that an assertion failed.)

    Raises:
        ValueError: such an id.
    """
    sides = [(item, ids) for item in items for ids in (item.tokens, item.source) if ids is not None]
    if not sides or np.concatenate([ids for _, ids in sides]).max(initial=0) < vocab_size:
        return
    item, ids = next((item, ids) for item, ids in sides if ids.max(initial=0) >= vocab_size)
    where = "" if item.example is None else f"{item.example.where}: "
    raise ValueError(f"{where}token id {ids.max()}, but the vocabulary has {vocab_size} tokens")


def warn_of_unknown(unknown: int, count: int, name: str) -> None:
    """Says how many tokens of a split stand for what the tokenizer does not know."""
    if unknown:
        log.warning("%s of %s %s tokens are <unk>", f"{unknown:,}", f"{count:,}", name)


def make_data_module(config: DictConfig, task: Task, splits: Splits, *, training: bool = True) -> DataModule:
    """The loaders of the splits.

    Args:
        config: the complete configuration.
        task: lays the examples out.
        splits: the examples.
        training: whether the training split is needed, and the validation split must be there.

    Raises:
        ValueError: an empty split, or a training split that no update can be made of.
    """
    has_validation = training or isinstance(splits.validation, LongText) or len(splits.validation) > 0
    return DataModule(
        train=encode_training(config, task, splits.train) if training else None,
        validation=encode_evaluation(config, task, splits.validation, "validation") if has_validation else None,
        test=encode_evaluation(config, task, splits.test, "test"),
        batch_size=config.batch.size,
        batch_tokens=config.batch.tokens,
        accumulate=config.trainer.accumulate_grad_batches,
        eval_batch_size=config.batch.eval_size,
        num_workers=config.batch.num_workers,
        seed=config.seed,
        packed=config.batch.packed,
    )


def check_update(config: DictConfig, train: EncodedSet) -> None:
    """Refuses a training split that no update can be made of.

    Raises:
        ValueError: one that is smaller than an update, or an example that is larger.
    """
    size, tokens = config.batch.size, config.batch.tokens
    if size is not None and 0 < len(train.sizes) < size:
        raise ValueError(
            f"batch.size={size}: the training split has {len(train.sizes)} examples; expected at most that"
        )
    if tokens is not None and (longest := train.sizes.max(initial=0)) > tokens:
        example = train[int(train.sizes.argmax())].example
        where = "a window" if example is None else example.where
        raise ValueError(f"{where}: {longest} tokens, but batch.tokens={tokens}; expected at least {longest}")


def set_search(task: Task, config: DictConfig, keys: Sequence[str]) -> None:
    """Changes the beam search of a task to what the configuration gives.

    Args:
        task: with its weights.
        config: of ``evaluate`` or ``predict``.
        keys: settings of ``BeamSearch``; those that are None stay as they are.

    Raises:
        ConfigError: a setting that cannot be, or a task that writes no text.
    """
    given = {key: config[key] for key in keys if config[key] is not None}
    if not given:
        return
    if not isinstance(task, GenerativeTask):
        key, value = next(iter(given.items()))
        raise ConfigError(f"{key}={value}: {task.name} writes no text")
    try:
        task.search = replace(task.search, **given)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def measure(trainer: L.Trainer, task: Task, data: DataModule, *, tests: bool = True) -> dict[str, float]:
    """The metrics of a task on the validation split, if there is one, and, where it ``tests``, on the test split."""
    values = {} if data.validation is None else dict(trainer.validate(task, data, verbose=False)[0])
    if tests:
        values |= trainer.test(task, data, verbose=False)[0]
    return {name: float(value) for name, value in values.items() if name.startswith(("val/", "test/"))}


def checkpoint_file(path: str | Path, key: str = "checkpoint") -> Path:
    """The checkpoint itself, or the newest one of a run directory.

    Args:
        path: of the file or the directory.
        key: where it stands.

    Raises:
        ConfigError: there is none.
    """
    if "://" in str(path):
        raise ConfigError(f"{key}={path}: expected a file or a run directory; download it first")
    path = Path(path)
    if (path / "config.json").is_file():
        raise ConfigError(f"{key}={path} is a Hugging Face folder: triptych import {path} --output CHECKPOINT first")
    if path.suffix == ".safetensors":
        raise ConfigError(f"{key}={path} holds weights alone; expected a checkpoint or a run directory")
    if path.is_dir():
        runs = sorted(str(file.parents[1]) for file in path.glob("*/checkpoints/last.ckpt"))
        path = path / "checkpoints" / "last.ckpt"
        if runs and not path.is_file():
            raise ConfigError(f"{key}={path.parents[1]}: holds {len(runs)} runs; choose one: {', '.join(runs)}")
        if path.is_file() and (damage := damage_of(path)):
            log.warning("%s is damaged and skipped: %s", path, damage)
            path = newest_good(path.parent) or path
    if not path.is_file():
        siblings = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        raise ConfigError(f"{key}={path}: no such file{nearest(str(path), siblings)}")
    return path


@dataclass(frozen=True, slots=True)
class Trained:
    """What a checkpoint holds of a trained task.

    Attributes:
        path: of the file.
        config: the complete configuration.
        tokenizer: of the texts.
        corpus: what is known of the corpus.
        weights: the state of the task; with a moving average, that.
    """

    path: Path
    config: DictConfig
    tokenizer: Tokenizer
    corpus: CorpusFacts
    weights: dict[str, Tensor]


def read_trained(path: str | Path, key: str = "checkpoint") -> Trained:
    """Reads a checkpoint.

    Args:
        path: of the file, or of a run directory (its newest checkpoint).
        key: where it stands.

    Raises:
        ConfigError: a file that is not a checkpoint of Triptych.
    """
    path = checkpoint_file(path, key)
    try:
        checkpoint = read_checkpoint(path)
    except RunError as error:
        raise ConfigError(f"{key}={error}") from None
    if "triptych" not in checkpoint:
        raise ConfigError(f"{key}={path}: not a checkpoint of Triptych")
    facts = checkpoint["triptych"]
    return Trained(
        path=path,
        config=OmegaConf.create(of_earlier_run(facts["config"])),
        tokenizer=Tokenizer.from_json(facts["tokenizer"], SpecialTokens.from_plain(facts["special_tokens"])),
        corpus=CorpusFacts.from_plain(facts["corpus"]),
        weights=checkpoint["state_dict"],
    )


def restore(path: str | Path, precision: str | None = None) -> tuple[DictConfig, Task]:
    """The configuration, and the task with its weights.

    Args:
        path: of the file, or of a run directory (its newest checkpoint).
        precision: to compute in, in place of the training's (``trainer.precision``).

    Raises:
        ConfigError: a file that is not a checkpoint of Triptych, or no such precision.
    """
    trained = read_trained(path)
    if precision is not None:
        if precision not in PRECISIONS:
            raise ConfigError(f"trainer.precision={precision}{suggestion(precision, list(PRECISIONS))}")
        trained.config.trainer.precision = precision
    task = make_task(trained.config, trained.tokenizer, trained.corpus)
    task.load_state_dict(trained.weights)
    arithmetic(task.precision, task.device).convert_module(task)
    return trained.config, task.eval()


def load(checkpoint: str | Path, precision: str | None = None) -> Task:
    """The trained task of a checkpoint, which is enough by itself; ``load(path).predict(texts)`` uses it.

    Args:
        checkpoint: a file, or a run directory (its newest checkpoint).
        precision: to compute in, such as "32-true"; None: that of the training, in which it was tested.

    Raises:
        ConfigError: no such file, a file that is not a checkpoint of Triptych, or no such precision.
    """
    return restore(checkpoint, precision)[1]
