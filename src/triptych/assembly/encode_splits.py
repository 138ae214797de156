"""Encodes the examples of a split for the network: lines, windows of long texts, or audio clips."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from rich.progress import BarColumn, TimeElapsedColumn

from triptych.config import counted
from triptych.config.run_settings import EncodingSettings
from triptych.data import EncodedDataset, EncodedExample, EncodedListDataset, LongText, Shard, shard_of
from triptych.data.batches.arrays import EncodedArrays, EncodingStats
from triptych.data.batches.windows import Layout, Training, TrainingWindows, Windows, split_into_windows
from triptych.data.example import Example, without_collection
from triptych.storage.array_files import cache_key, read_arrays, write_arrays
from triptych.storage.cache import cache_folder, get_or_make_best_effort
from triptych.storage.progress import show_progress
from triptych.tasks import LanguageModeling, Task
from triptych.tasks.audio_inputs import AudioInputs

log = logging.getLogger("triptych")

AT_ONCE = 20_000
"""Examples that are encoded at once; all items of a large split would need much memory."""


def encode_training(settings: EncodingSettings, task: Task, examples: Sequence[Example] | LongText) -> Training:
    """Encodes the training split: line by line (several times with ``batch.bpe_dropout``), or as windows of a long
    text."""
    share = settings.bpe_dropout
    if isinstance(examples, LongText):
        if share:
            raise ValueError(f"batch.bpe_dropout={share}: not supported for a long text; expected 0, or examples")
        texts = [shard.ids for shard in shards_of(task, examples, "train")]
        weights = [source.weight for source in examples.sources]
        return TrainingWindows(texts, weights, length=task.max_length, encode=stream_layout(task))
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
    stride = settings.eval_stride or task.max_length
    ids, ends = [shard.ids for shard in shards], [shard.ends for shard in shards]
    windows = Windows(ids, ends=ends, length=task.max_length, stride=stride, encode=stream_layout(task))
    log.info("%s: %s windows of %s tokens, stride %s", name, f"{len(windows.sizes):,}", task.max_length, stride)
    return windows


def shards_of(task: Task, text: LongText, name: str) -> list[Shard]:
    """The tokens of the sources of a long text."""
    shards = [shard_of(source, task.tokenizer, name) for source in text.sources]
    warn_of_unknown(sum(shard.num_unknown for shard in shards), sum(len(shard.ids) for shard in shards), name)
    return shards


def stream_layout(task: Task) -> Layout:
    """The function of the task that encodes a window of a long text."""
    assert isinstance(task, LanguageModeling)  # the only task with windows
    return task.encode_window


def encode_lines(settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str) -> EncodedDataset:
    """Encodes a split line by line, with a cache. Lines that are too long are errors, truncated or dropped. In the
    evaluation of a decoder-only language model, unless they are errors, they are scored in overlapping windows."""
    if not task.has_tokens:
        return EncodedListDataset(task.encode(examples))
    if task.image_shape is not None:
        parts = [*lay_out(settings, task, examples, name)]
        lost = EncodingStats.total([lost for _, _, lost in parts])
        check_lost(settings, task, lost, name)
        return EncodedListDataset([item for items, _, _ in parts for item in items], too_long=lost.too_long)
    if task.audio is not None:
        return encode_sounds(settings, task, examples, name, task.audio)
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


def encode_sounds(
    settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str, audio: AudioInputs
) -> EncodedListDataset:
    """Encodes a split of audio clips as frames. Clips that are too long are errors, truncated or dropped, like
    texts."""
    frames = audio.embedding
    rates = Counter(example.audio.rate for example in examples if example.audio is not None)
    for rate, count in rates.items():
        if rate != frames.rate:
            log.info("%s %s: resampled from %s to %s Hz", counted(count, "audio clip"), name, rate, frames.rate)
    audio.update_speaker_means([example.audio for example in examples if example.audio is not None])
    items = task.encode(examples) if name != "train" else task.encode_training(examples)
    lengths = [frames.count(len(item.inputs if item.source is None else item.source)) for item in items]
    too_long = [i for i, length in enumerate(lengths) if length > audio.max_positions]
    if too_long and settings.too_long == "error":
        item = items[too_long[0]]
        where = "" if item.example is None else f"{item.example.where}: "
        others = f" (as are {len(too_long) - 1:,} others of {len(items):,})" if len(too_long) > 1 else ""
        raise ValueError(
            f"{where}an audio clip of {lengths[too_long[0]]} positions is longer than shape.max_length="
            f"{audio.max_positions}{others}. Raise shape.max_length or audio_embedding.stride={frames.stride}, or set "
            "batch.too_long=truncate or drop"
        )
    if not too_long:
        return EncodedListDataset(items)
    is_dropped = settings.too_long == "drop" and name == "train"
    log.warning("%s of %s %s sounds have more than shape.max_length=%s positions and are %s", f"{len(too_long):,}",
                f"{len(items):,}", name, audio.max_positions, "dropped" if is_dropped else "truncated")  # fmt: skip
    for i in reversed(too_long):
        items[i : i + 1] = [] if is_dropped else [task.truncate_audio(items[i])]
    return EncodedListDataset(items, too_long=len(too_long))


def key_of_lines(settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str) -> str | None:
    """The cache key of an encoded split; None: not cached, because it depends on the seed or on code outside of
    Triptych."""
    key, is_ours = getattr(examples, "key", None), type(task).__module__.startswith("triptych.")
    if key is None or not is_ours or task.encodes_randomly or (name == "train" and settings.bpe_dropout > 0):
        return None
    tokenizer = [task.tokenizer.sha256, task.tokenizer.special.to_dict()]
    info = [task.corpus.to_dict(), *tokenizer, task.architecture, task.max_length]
    return cache_key(key, name, settings.task, *info, settings.too_long, settings.eval_stride)


def lay_out(
    settings: EncodingSettings, task: Task, examples: Sequence[Example], name: str
) -> Iterator[tuple[list[EncodedExample], Sequence[Example], EncodingStats]]:
    """Encodes a split line by line, and counts what is left out; see ``encode_lines``. Yields the items of successive
    examples, these examples and the counts. A task that encodes randomly encodes all examples at once."""
    is_random = task.encodes_randomly or (name == "train" and settings.bpe_dropout > 0)
    size = max(len(examples), 1) if is_random else AT_ONCE
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
    check_ids(lines, task.tokenizer.vocab_size + task.num_extra_tokens(settings.task))
    if scores_in_windows(settings, task, name):
        stride = settings.eval_stride or task.max_length
        kept = [window for item in lines for window in split_into_windows(item, task.max_length, stride)]
    elif settings.too_long == "drop" and name == "train":
        kept = [item for item in lines if item.longest <= task.max_length]
    else:
        kept = task.enforce_max_length(lines)
    tokens = np.concatenate([np.empty(0, np.int64), *(item.inputs for item in lines)])
    lost = EncodingStats(
        lines=len(lines),
        too_long=sum(item.longest > task.max_length for item in lines),
        tokens=len(tokens),
        unknown=0 if (unk := task.tokenizer.special.unk) is None else int((tokens == unk).sum()),
    )
    return kept, lost


def scores_in_windows(settings: EncodingSettings, task: Task, name: str) -> bool:
    """Whether lines that are too long are scored in overlapping windows."""
    return settings.too_long != "error" and name != "train" and task.scores_in_windows


def check_lost(settings: EncodingSettings, task: Task, lost: EncodingStats, name: str) -> None:
    """Warns of lines that are too long and of unknown tokens in a split; no line left is an error."""
    if settings.too_long == "drop" and name == "train" and lost.too_long == lost.lines > 0:
        raise ValueError(
            f"batch.too_long=drop: all {lost.lines:,} training examples have more than "
            f"shape.max_length={task.max_length} tokens, so none is left"
        )
    warn_of_unknown(lost.unknown, lost.tokens, name)
    if scores_in_windows(settings, task, name):
        done = f"scored in windows of that length, stride {settings.eval_stride or task.max_length}"
    else:
        done = "dropped" if settings.too_long == "drop" and name == "train" else "truncated"
    if lost.too_long:
        share = f"{lost.too_long:,} of {lost.lines:,} {name} examples"
        log.warning("%s have more than shape.max_length=%s tokens and are %s", share, task.max_length, done)


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
