"""From splits and a tokenizer to the data of a training."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import Any, cast, get_args

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.progress import BarColumn, TimeElapsedColumn

from triptych.config import ConfigError, build, counted, hints_of, target_of
from triptych.data import (
    Characters,
    Corpus,
    CorpusFacts,
    DataModule,
    Encoded,
    EncodedList,
    EncodedSet,
    Example,
    Learned,
    LongText,
    Shard,
    Splits,
    Tokenizer,
    TrainableTokenizer,
    TrainingWindows,
    Windows,
    learned,
    read_splits,
    shard_of,
)
from triptych.data.batches.arrays import EncodedArrays, Lost
from triptych.data.batches.datamodule import Training
from triptych.data.batches.windows import Layout, windows_of
from triptych.data.example import without_collection
from triptych.data.readers.columns import MissingColumnError
from triptych.nn import FrameEmbedding
from triptych.storage.arrays import key_of, read_arrays, write_arrays
from triptych.storage.cache import cache_folder, kept
from triptych.storage.progress import show_progress
from triptych.tasks import LanguageModeling, Task
from triptych.training.hardware import is_on_cpu

log = logging.getLogger("triptych")

MUCH_PADDING = 0.1
"""From this share of padding on, batches are packed on CPUs. With 16 % of padding packed ones were 1.14 times as fast
there, with 29 % 1.19 times (benchmarks/speed.md); with little they are as fast as padded ones."""


def read_corpus(config: DictConfig, name: str) -> tuple[Corpus, Splits, CorpusFacts]:
    """The corpus, its examples, and what is known of it once they are read.

    Args:
        name: what the corpus is called.

    Raises:
        ValueError: it cannot be read.
        ConfigError: it lacks a column that the task does not need.
    """
    corpus: Corpus = build(config, "data")
    log.info("reading %s", name)
    settings = cast(dict[str, Any], OmegaConf.to_container(config.data, resolve=True))
    try:
        splits, digest = read_splits(corpus, settings)
    except MissingColumnError as error:
        key, may_be_null = error.field, type(None) in get_args(hints_of(type(corpus)).get(error.field))
        if key == "text" or key in target_of(config, "task").columns or not may_be_null:
            raise
        raise ConfigError(f"{error}; data.{key}=null leaves it out") from None
    parts = (splits.train, splits.validation, splits.test)
    sizes = (str(part) if isinstance(part, LongText) else counted(len(part), "example") for part in parts)
    log.info("%s to train, %s to validate, %s to test", *sizes)
    first = next(iter(splits.train), None)
    has_pairs = first is not None and first.pair is not None
    has_speakers = first is not None and first.sound is not None and bool(first.sound.speaker)
    return corpus, splits, replace(corpus.facts, sha256=digest, has_pairs=has_pairs, has_speakers=has_speakers)


def train_tokenizer(config: DictConfig, splits: Splits) -> Tokenizer:
    """The configured tokenizer, trained on the texts, pairs and targets of the training split. (Of images there are
    none: it has its special tokens, and nobody uses it.)"""
    kind: TrainableTokenizer = build(config, "tokenizer")
    train = splits.train
    sources = (
        text for x in train if x.image is None and x.sound is None for text in (x.text, x.pair) if text is not None
    )  # the text of a conversation is all that stands before its last answer, and that is the target
    targets = () if isinstance(train, LongText) else (x.target for x in train if x.target is not None)
    key = train.sha256 if isinstance(train, LongText) else getattr(train, "key", None)
    has_texts = not any(x.image is not None or x.sound is not None for x in islice(train, 1))
    if key is None or not has_texts or not isinstance(kind, Learned | Characters):
        return kind.train(sources, targets)
    return learned(kind, sources, targets, key)


def encode_training(config: DictConfig, task: Task, examples: Sequence[Example] | LongText) -> Training:
    """The training split as the network will see it: line by line (several times, with ``batch.merge_dropout``), or
    windows of a long text.

    Raises:
        ValueError: a text that is too long or too short, an id beyond the vocabulary, fewer examples than an update, or
            merges that cannot be left out.
        RunError: the tokens of a long text cannot be written.
    """
    share = config.batch.merge_dropout
    if isinstance(examples, LongText):
        if share:
            raise ValueError(f"batch.merge_dropout={share}: a long text is cut once; expected 0, or data of examples")
        texts = [shard.ids for shard in shards_of(task, examples, "train")]
        weights = [source.weight for source in examples.sources]
        return TrainingWindows(texts, weights, length=task.max_length, encode=stream_layout(task))
    lines = encode_lines(config, task, examples, "train")
    check_update(config, lines)
    return lines


def encode_cuts(config: DictConfig, task: Task, examples: Sequence[Example]) -> list[Encoded]:
    """The training split, cut into tokens ``batch.cuts`` times, each time without other merges.

    Raises:
        ValueError: a tokenizer without merges.
    """
    whole, cuts = task.tokenizer, list[Encoded]()
    try:
        for cut in range(config.batch.cuts):
            task.tokenizer = whole.without_merges(config.batch.merge_dropout, (config.seed, cut))
            cuts += task.encode_training(examples)
    finally:
        task.tokenizer = whole
    return cuts


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


def encode_lines(config: DictConfig, task: Task, examples: Sequence[Example], name: str) -> EncodedSet:
    """A split line by line, from the cache if it was laid out like this before. Lines that are too long are refused,
    truncated or dropped; but in the evaluation of a decoder-only language model, if they are not refused, each is
    scored as a whole, in overlapping windows.

    Raises:
        ValueError: an example that is too long, where batch.too_long=error; an id beyond the vocabulary.
    """
    if not task.has_tokens:
        return EncodedList(task.encode(examples))
    if task.image_shape is not None:
        items, lost = lay_out(config, task, examples, name)
        warn_of_lost(config, task, lost, name)
        return EncodedList(items, too_long=lost.too_long)
    if task.frames is not None:
        return encode_sounds(config, task, examples, name, task.frames)
    key = key_of_lines(config, task, examples, name)
    path = cache_folder() / "laid_out" / f"{key}.npz"

    def read() -> EncodedArrays | None:
        arrays = read_arrays(path)
        return None if arrays is None else EncodedArrays.from_arrays(arrays, examples)

    def make() -> EncodedArrays:
        listed = [*examples]  # what is kept reads an example anew each time
        items, lost = lay_out(config, task, listed, name)
        return EncodedArrays.of(items, listed, lost)

    def write(lines: EncodedArrays) -> None:
        write_arrays(path, lines.as_arrays())

    lines = make() if key is None else kept(path, "what is laid out is", read, make, write)
    warn_of_lost(config, task, lines.lost, name)
    return lines


def encode_sounds(
    config: DictConfig, task: Task, examples: Sequence[Example], name: str, frames: FrameEmbedding
) -> EncodedList:
    """A split of sounds, as frames. Those that have more positions than the network reads are refused, truncated or
    dropped, as texts are.

    Raises:
        ValueError: a sound that is too long, where batch.too_long=error.
    """
    rates = Counter(example.sound.rate for example in examples if example.sound is not None)
    for rate, count in rates.items():
        if rate != frames.rate:
            log.info("%s %s: resampled from %s to %s Hz", counted(count, "sound"), name, rate, frames.rate)
    task.meet([example.sound for example in examples if example.sound is not None])
    items = task.encode(examples) if name != "train" else task.encode_training(examples)
    lengths = [frames.count(len(item.tokens if item.source is None else item.source)) for item in items]
    too_long = [i for i, length in enumerate(lengths) if length > task.sound_length]
    if too_long and config.batch.too_long == "error":
        item = items[too_long[0]]
        where = "" if item.example is None else f"{item.example.where}: "
        others = f" (so have {len(too_long) - 1:,} others of {len(items):,})" if len(too_long) > 1 else ""
        raise ValueError(
            f"{where}a sound of {lengths[too_long[0]]} positions{others}, but shape.max_length={task.sound_length}; "
            f"raise it, or frames.stride (now {frames.stride}), or choose batch.too_long=truncate or drop"
        )
    if not too_long:
        return EncodedList(items)
    is_dropped = config.batch.too_long == "drop" and name == "train"
    log.warning("%s of %s %s sounds have more than shape.max_length=%s positions and are %s", f"{len(too_long):,}",
                f"{len(items):,}", name, task.sound_length, "dropped" if is_dropped else "truncated")  # fmt: skip
    for i in reversed(too_long):
        items[i : i + 1] = [] if is_dropped else [task.truncate_sound(items[i])]
    return EncodedList(items, too_long=len(too_long))


def key_of_lines(config: DictConfig, task: Task, examples: Sequence[Example], name: str) -> str | None:
    """What a laid out split follows from; None: it is not kept, since it follows from the seed, or from code that is
    not ours."""
    key, is_ours = getattr(examples, "key", None), type(task).__module__.startswith("triptych.")
    if key is None or not is_ours or task.draws or (name == "train" and config.batch.merge_dropout > 0):
        return None
    settings = OmegaConf.to_container(config.task, resolve=True)
    tokenizer = [task.tokenizer.sha256, task.tokenizer.special.as_plain()]
    facts = [task.corpus.as_plain(), *tokenizer, task.architecture, task.max_length]
    return key_of(key, name, settings, *facts, config.batch.too_long, config.batch.eval_stride)


@without_collection()
def lay_out(config: DictConfig, task: Task, examples: Sequence[Example], name: str) -> tuple[list[Encoded], Lost]:
    """A split line by line, and what the network does not see of it; see ``encode_lines``."""
    with show_progress("{task.description}", BarColumn(), TimeElapsedColumn()) as progress:
        progress.add_task(f"laying out {name}: {counted(len(examples), 'example')}", total=None)
        if name != "train":
            lines = task.encode(examples)
        elif config.batch.merge_dropout > 0:
            lines = encode_cuts(config, task, examples)
        else:
            lines = task.encode_training(examples)
    check_ids(lines, task.tokenizer.vocab_size + task.num_extra_tokens(config.task))
    if scores_in_windows(config, task, name):
        stride = config.batch.eval_stride or task.max_length
        kept = [window for item in lines for window in windows_of(item, task.max_length, stride)]
    elif config.batch.too_long == "drop" and name == "train":
        kept = [item for item in lines if item.longest <= task.max_length]
        if lines and not kept:
            raise ValueError(
                f"batch.too_long=drop: each of the {len(lines):,} training examples has more than "
                f"shape.max_length={task.max_length} tokens"
            )
    else:
        kept = task.fit(lines)
    tokens = np.concatenate([np.empty(0, np.int64), *(item.tokens for item in lines)])
    lost = Lost(
        lines=len(lines),
        too_long=sum(item.longest > task.max_length for item in lines),
        tokens=len(tokens),
        unknown=0 if (unk := task.tokenizer.special.unk) is None else int((tokens == unk).sum()),
    )
    return kept, lost


def scores_in_windows(config: DictConfig, task: Task, name: str) -> bool:
    """Whether a line that is too long is scored as a whole, in overlapping windows."""
    return config.batch.too_long != "error" and name != "train" and task.scores_in_windows


def warn_of_lost(config: DictConfig, task: Task, lost: Lost, name: str) -> None:
    """Says how many lines of a split the network does not see whole, and how many of its tokens it does not know."""
    warn_of_unknown(lost.unknown, lost.tokens, name)
    if scores_in_windows(config, task, name):
        done = f"scored in windows of that many, stride {config.batch.eval_stride or task.max_length}"
    else:
        done = "dropped" if config.batch.too_long == "drop" and name == "train" else "truncated"
    if lost.too_long:
        log.warning(
            "%s of %s %s examples have more than shape.max_length=%s tokens and are %s",
            f"{lost.too_long:,}",
            f"{lost.lines:,}",
            name,
            task.max_length,
            done,
        )


def check_ids(items: Sequence[Encoded], vocab_size: int) -> None:
    """Refuses ids that the network has no vector for. (A GPU would only say that an assertion failed.)

    Raises:
        ValueError: such an id.
    """
    sides = [(item, ids) for item in items for ids in (item.tokens, item.source) if ids is not None and ids.ndim == 1]
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
        training: whether the training split is needed, and the validation split must be there.

    Raises:
        ValueError: an empty split, or a training split that no update can be made of.
    """
    train = encode_training(config, task, splits.train) if training else None
    packed = train is not None and is_packed(config, train)
    if packed and config.batch.packed is None:
        log.info("training batches are packed, for much of them would be padding")
    has_validation = training or isinstance(splits.validation, LongText) or len(splits.validation) > 0
    return DataModule(
        train=train,
        validation=encode_evaluation(config, task, splits.validation, "validation") if has_validation else None,
        test=encode_evaluation(config, task, splits.test, "test"),
        batch_size=config.batch.size,
        batch_tokens=config.batch.tokens,
        accumulate=config.trainer.accumulate_grad_batches,
        eval_batch_size=config.batch.eval_size,
        num_workers=config.batch.num_workers,
        seed=config.seed,
        packed=packed,
    )


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
