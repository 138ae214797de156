"""Encodes the examples of a split for the network: lines, windows of long texts, or audio clips."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
from rich.progress import BarColumn, TimeElapsedColumn

from triptych.config import counted
from triptych.config.run_settings import EncodingSettings
from triptych.data import EncodedDataset, EncodedExample, EncodedListDataset, LongText, Shard, shard_of
from triptych.data.batches.arrays import EncodedArrays, EncodingStats
from triptych.data.batches.on_demand import EncodedOnDemand
from triptych.data.batches.windows import Training, TrainingWindows, Windows, split_into_windows
from triptych.data.example import Example, without_collection
from triptych.data.file_examples import FileExamples, outlines_of
from triptych.storage.array_files import cache_key, read_arrays, write_arrays
from triptych.storage.cache import cache_folder, get_or_make_best_effort
from triptych.storage.progress import show_progress
from triptych.tasks import LanguageModeling, Task

log = logging.getLogger("triptych")

AT_ONCE, FILES_AT_ONCE = 20_000, 64
"""Examples, and images or audio clips in files, that are encoded at once: all items of a split may need much memory."""


def encode_training(settings: EncodingSettings, task: Task, examples: Sequence[Example] | LongText) -> Training:
    """Encodes the training split: line by line (several times with ``batch.bpe_dropout``), or as windows of a long
    text."""
    share = settings.bpe_dropout
    if isinstance(examples, LongText):
        if share:
            raise ValueError(f"batch.bpe_dropout={share}: not supported for a long text; expected 0, or examples")
        texts = [shard.ids for shard in shards_of(task, examples, "train")]
        weights = [source.weight for source in examples.sources]
        task = language_model(task)
        return TrainingWindows(texts, weights, length=task.window_length, encode=task.encode_window)
    return encode_lines(settings, task, examples, "train")


def encode_cuts(settings: EncodingSettings, task: Task, examples: Sequence[Example]) -> list[EncodedExample]:
    """Encodes the training split ``batch.bpe_dropout_copies`` times, each time with other merges left out."""
    whole, cuts = task.tokenizer, list[EncodedExample]()
    try:
        for cut in range(settings.bpe_dropout_copies):
            task.tokenizer = whole.with_bpe_dropout(settings.bpe_dropout, (settings.seed, cut))
            cuts += task.encode_training(examples)
    finally:
        task.tokenizer = whole
    return cuts


def encode_evaluation(
    settings: EncodingSettings, task: Task, examples: Sequence[Example] | LongText, name: str
) -> EncodedDataset:
    """Encodes a split for evaluation: line by line, or as windows of a long text."""
    if not isinstance(examples, LongText):
        return encode_lines(settings, task, examples, name)
    shards = shards_of(task, examples, name)
    task = language_model(task)
    length = task.window_length
    stride = min(settings.eval_stride or length, length)
    ids, ends = [shard.ids for shard in shards], [shard.ends for shard in shards]
    windows = Windows(ids, ends=ends, length=length, stride=stride, encode=task.encode_window)
    log.info("%s: %s windows of %s tokens, stride %s", name, f"{len(windows.sizes):,}", length, stride)
    return windows


def shards_of(task: Task, text: LongText, name: str) -> list[Shard]:
    """The tokens of the sources of a long text."""
    shards = [shard_of(source, task.tokenizer, name) for source in text.sources]
    warn_of_unknown(sum(shard.num_unknown for shard in shards), sum(len(shard.ids) for shard in shards), name)
    return shards


def language_model(task: Task) -> LanguageModeling:
    """The task, which reads windows of a long text."""
    assert isinstance(task, LanguageModeling)  # the only one
    return task


def encode_lines(settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str) -> EncodedDataset:
    """Encodes a split line by line, with a cache. Lines that are too long are errors, truncated or dropped. In the
    evaluation of a decoder-only language model, unless they are errors, they are scored in overlapping windows."""
    if not task.has_tokens or task.image_shape is not None or task.audio is not None:
        return encode_files(settings, task, examples, name)
    key = key_of_lines(settings, task, examples, name)
    path = cache_folder() / "laid_out" / f"{key}.npz"

    def read() -> EncodedArrays | None:
        arrays = read_arrays(path)
        return None if arrays is None else EncodedArrays.from_arrays(arrays, examples)

    def make() -> EncodedArrays:
        parts, begin = list[EncodedArrays](), 0
        for items, part, lost in lay_out(settings, task, examples, name):
            parts.append(EncodedArrays.of(items, part, lost).in_split(examples, begin))
            begin += len(part)
        return EncodedArrays.join(parts)

    def write(lines: EncodedArrays) -> None:
        write_arrays(path, lines.as_arrays())

    lines = make() if key is None else get_or_make_best_effort(path, "encoded examples are", read, make, write)
    check_lost(settings, task, lines.lost, name)
    return lines


def encode_files(settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str) -> EncodedDataset:
    """Encodes a split of images or audio. If the examples are decoded when they are read, so are the items encoded; all
    are encoded once before, to check and to measure them."""
    if task.audio is not None:
        frames = task.audio.embedding
        for rate, count in Counter(x.audio.rate for x in outlines_of(examples) if x.audio is not None).items():
            if rate != frames.rate:
                log.info("%s %s: resampled from %s to %s Hz", counted(count, "audio clip"), name, rate, frames.rate)
        task.audio.update_speaker_means(x.audio for x in examples if x.audio is not None)
    parts = lay_out(settings, task, examples, name)
    if isinstance(examples, FileExamples) and not draws(settings, task, name):
        means = {} if task.audio is None else task.audio.speaker_means

        def encode(index: int) -> EncodedExample:
            with nullcontext() if task.audio is None else task.audio.with_means(means):  # those of this split
                return encode_part(settings, task, [examples[index]], name)[0][0]

        on_demand = EncodedOnDemand(parts, encode)
        check_lost(settings, task, on_demand.lost, name)
        return on_demand
    items, losses = list[EncodedExample](), list[EncodingStats]()
    for found, _, lost in parts:
        items += found
        losses.append(lost)
    lost = EncodingStats.total(losses)
    check_lost(settings, task, lost, name)
    return EncodedListDataset(items, too_long=lost.too_long)


def fit_audio(
    settings: EncodingSettings, task: Task, items: Sequence[EncodedExample], name: str
) -> tuple[list[EncodedExample], EncodingStats]:
    """Truncates or drops clips that are too long, and counts them; or they are errors."""
    assert task.audio is not None
    frames, most = task.audio.embedding, task.audio.max_positions
    lengths = [frames.count(len(item.inputs if item.source is None else item.source)) for item in items]
    too_long = [i for i, length in enumerate(lengths) if length > most]
    if too_long and settings.too_long == "error":
        item = items[too_long[0]]
        where = "" if item.example is None else f"{item.example.where}: "
        others = f" (as are {len(too_long) - 1:,} others of {len(items):,})" if len(too_long) > 1 else ""
        raise ValueError(
            f"{where}an audio clip of {lengths[too_long[0]]} positions is longer than shape.max_length={most}{others}. "
            f"Raise shape.max_length or audio_embedding.stride={frames.stride}, or set batch.too_long=truncate or drop"
        )
    is_dropped = settings.too_long == "drop" and name == "train"
    kept = [*items]
    for i in reversed(too_long):
        kept[i : i + 1] = [] if is_dropped else [task.truncate_audio(items[i])]
    return kept, EncodingStats(lines=len(items), too_long=len(too_long), tokens=0, unknown=0)


def key_of_lines(settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str) -> str | None:
    """The cache key of an encoded split; None: not cached, because it depends on the seed or on code outside of
    Triptych."""
    key, is_ours = getattr(examples, "key", None), type(task).__module__.startswith("triptych.")
    if not key or not is_ours or draws(settings, task, name):
        return None
    tokenizer = [task.tokenizer.sha256, task.tokenizer.special.to_dict()]
    info = [task.corpus.to_dict(), *tokenizer, task.architecture, task.max_length]
    return cache_key(key, name, settings.task, *info, settings.too_long, settings.eval_stride)


def draws(settings: EncodingSettings, task: Task, name: str) -> bool:
    """Whether the items of a split are drawn, so that each depends on the others."""
    return task.encodes_randomly or (name == "train" and settings.bpe_dropout > 0)


def lay_out(
    settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str
) -> Iterator[tuple[list[EncodedExample], Sequence[Example], EncodingStats]]:
    """Encodes a split line by line, and counts what is left out; see ``encode_lines``. Yields the items of successive
    examples, these examples and the counts. A task that encodes randomly encodes all examples at once."""
    at_once = FILES_AT_ONCE if isinstance(examples, FileExamples) else AT_ONCE
    size = max(len(examples), 1) if draws(settings, task, name) else at_once
    with show_progress("{task.description}", BarColumn(), TimeElapsedColumn()) as progress:
        bar = progress.add_task(f"encoding {name}: {counted(len(examples), 'example')}", total=len(examples))
        for start in range(0, max(len(examples), 1), size):
            part = examples[start : start + size]
            items, lost = encode_part(settings, task, part, name)
            yield items, part, lost
            progress.advance(bar, len(part))


@without_collection()
def encode_part(
    settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str
) -> tuple[list[EncodedExample], EncodingStats]:
    """The items of some examples, and what is left out."""
    if name != "train":
        lines = task.encode(examples)
    elif settings.bpe_dropout > 0:
        lines = encode_cuts(settings, task, examples)
    else:
        lines = task.encode_training(examples)
    if not task.has_tokens:
        return lines, EncodingStats(lines=len(lines), too_long=0, tokens=0, unknown=0)
    check_ids(lines, task.tokenizer.vocab_size + task.num_extra_tokens(settings.task))
    if task.audio is not None:
        return fit_audio(settings, task, lines, name)
    too_long = sum(item.longest > task.max_length for item in lines)
    if not too_long:
        kept = lines
    elif scores_in_windows(settings, task, name):
        stride = settings.eval_stride or task.max_length
        kept = [window for item in lines for window in split_into_windows(item, task.max_length, stride)]
    elif settings.too_long == "drop" and name == "train":
        kept = [item for item in lines if item.longest <= task.max_length]
    else:
        kept = task.enforce_max_length(lines)
    tokens = np.concatenate([np.empty(0, np.int64), *(item.inputs for item in lines)])
    lost = EncodingStats(
        lines=len(lines),
        too_long=too_long,
        tokens=len(tokens),
        unknown=0 if (unk := task.tokenizer.special.unk) is None else int((tokens == unk).sum()),
    )
    return kept, lost


def scores_in_windows(settings: EncodingSettings, task: Task, name: str) -> bool:
    """Whether lines that are too long are scored in overlapping windows."""
    return settings.too_long != "error" and name != "train" and task.scores_in_windows


def check_lost(settings: EncodingSettings, task: Task, lost: EncodingStats, name: str) -> None:
    """Warns of lines that are too long and of unknown tokens in a split; no line left is an error."""
    most, unit = (task.max_length, "tokens") if task.audio is None else (task.audio.max_positions, "positions")
    if settings.too_long == "drop" and name == "train" and lost.too_long == lost.lines > 0:
        raise ValueError(
            f"batch.too_long=drop: all {lost.lines:,} training examples have more than shape.max_length={most} {unit}, "
            "so none is left"
        )
    warn_of_unknown(lost.unknown, lost.tokens, name)
    if scores_in_windows(settings, task, name):
        done = f"scored in windows of that length, stride {settings.eval_stride or task.max_length}"
    else:
        done = "dropped" if settings.too_long == "drop" and name == "train" else "truncated"
    if lost.too_long:
        share = f"{lost.too_long:,} of {lost.lines:,} {name} examples"
        log.warning("%s have more than shape.max_length=%s %s and are %s", share, most, unit, done)


def check_ids(items: Sequence[EncodedExample], vocab_size: int) -> None:
    """Raises an error for token IDs outside of the vocabulary. (A GPU would only report a failed assertion.)"""
    sides = [(item, ids) for item in items for ids in (item.inputs, item.source) if ids is not None and ids.ndim == 1]
    if not sides or np.concatenate([ids for _, ids in sides]).max(initial=0) < vocab_size:
        return
    item, ids = next((item, ids) for item, ids in sides if ids.max(initial=0) >= vocab_size)
    where = "" if item.example is None else f"{item.example.where}: "
    raise ValueError(f"{where}token id {ids.max()}, but the vocabulary has {vocab_size} tokens")


def warn_of_unknown(unknown: int, count: int, name: str) -> None:
    """Warns of unknown tokens in a split."""
    if unknown:
        log.warning("%s of %s %s tokens are <unk>", f"{unknown:,}", f"{count:,}", name)
