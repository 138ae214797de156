"""Reading and laying out a corpus: fast, not in silence, and each example as if it were alone."""

import gc
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig

import tiny
from command_line import complete
from triptych.assembly.encode_splits import encode_training
from triptych.assembly.make_task import make_task
from triptych.assembly.read_data import train_tokenizer
from triptych.config import build
from triptych.config.run_settings import RunSettings
from triptych.data import IGNORE_INDEX, Corpus, EncodedExample, EncodedListDataset, Splits, sha256
from triptych.data.splits import make_splits
from triptych.tasks import Task


@contextmanager
def collections() -> Iterator[list[str]]:
    """The searches for garbage that Python makes meanwhile."""
    seen: list[str] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(phase)

    gc.callbacks.append(count)
    try:
        yield seen
    finally:
        gc.callbacks.remove(count)


def laid_out(config: DictConfig) -> tuple[Splits, Task]:
    corpus: Corpus = build(config, "data")
    splits = corpus.splits()
    tokenizer = train_tokenizer(config, splits)
    complete(config, tokenizer, corpus.info)
    return splits, make_task(RunSettings.of(config), tokenizer, corpus.info)


def listed(split: Any) -> list[EncodedExample]:
    """All examples of an encoded split."""
    return [split[i] for i in range(len(split.sizes))]


@pytest.mark.parametrize("experiment", ["translation_full", "classification_encoder_only"])
def test_no_garbage_is_looked_for(experiment: str, chosen: Callable[..., DictConfig]) -> None:
    """Python goes through all examples each time that a few hundred more are there."""
    config = chosen(*tiny.dates(experiment), *tiny.TINY, "data.num_train=3000")
    corpus: Corpus = build(config, "data")
    with collections() as seen:
        splits = corpus.splits()
        make_splits(lambda _: [replace(example) for example in splits.train], "", 0.1, 0.1, 1)
    assert len(seen) <= 2  # one after each
    _, task = laid_out(config)
    settings = RunSettings.of(config).encoding
    with collections() as seen:
        encode_training(settings, task, splits.train)
    assert len(seen) <= 1
    with collections() as seen:  # it is looked for again
        kept = [[i] for i in range(30_000)]
    assert len(seen) > 2, len(kept)


def test_it_says_what_it_does(chosen: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    config = chosen("experiment=dates/translation", *tiny.TINY, "data.num_train=1234")
    splits, task = laid_out(config)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, says in ((Terminal(), "encoding train: 1,234 examples"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        encode_training(RunSettings.of(config).encoding, task, splits.train)
        monkeypatch.undo()
        assert says in stream.getvalue()
        assert bool(stream.getvalue()) == bool(says)


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ([[1, IGNORE_INDEX], [IGNORE_INDEX], [2]], [1, 0, 1]),
        ([[], [3, 4], []], [0, 2, 0]),
        ([], []),
        ([[IGNORE_INDEX], [IGNORE_INDEX]], [0, 0]),
    ],
)
def test_scored_labels(labels: list[list[int]], counts: list[int]) -> None:
    items = [EncodedExample(np.array([7, 8]), np.array(row, dtype=np.int64)) for row in labels]
    assert EncodedListDataset(items).num_scored.tolist() == [item.num_scored for item in items] == counts


def test_each_example_is_laid_out_as_if_it_were_alone(chosen: Callable[..., DictConfig]) -> None:
    config = chosen("experiment=dates/translation", *tiny.TINY)
    splits, task = laid_out(config)
    encoded = encode_training(RunSettings.of(config).encoding, task, splits.train)
    for i in (0, 7, 399):
        (alone,) = task.encode([splits.train[i]])
        for side in ("inputs", "labels", "source"):
            assert np.array_equal(getattr(encoded[i], side), getattr(alone, side))
        assert encoded[i].example is splits.train[i]
    assert sha256(splits) == sha256(build(config, "data").splits())


def test_training_examples_are_cut_several_times(
    chosen: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
) -> None:
    """Each text as often as batch.bpe_dropout_copies, in smaller tokens and not always the same; validation as ever."""
    config = chosen(
        "experiment=dates/translation", *tiny.TINY, "tokenizer=bpe", "tokenizer.vocab_size=400", "data.num_train=200",
        "batch.bpe_dropout=0.5", "batch.bpe_dropout_copies=3", "shape.max_length=16", "batch.too_long=truncate",
    )  # fmt: skip
    splits, task = laid_out(config)
    tokenizer = task.tokenizer
    cuts = listed(encode_training(RunSettings.of(config).encoding, task, splits.train))
    assert len([said for said in caplog.messages if "have more than shape.max_length=16 tokens" in said]) == 1
    plain = task.encode(splits.train)
    assert len(cuts) == 3 * len(plain) == 600
    special = tokenizer.special.ids
    for i, item in enumerate(plain):
        copies = cuts[i :: len(plain)]
        assert all(copy.example is item.example for copy in copies)
        texts = [tokenizer.decode([t for t in copy.inputs if t not in special]) for copy in (item, *copies)]
        assert len({*texts}) == 1
    lengths = [sum(item.size for item in cuts[k * 200 : (k + 1) * 200]) for k in range(3)]
    assert min(lengths) > sum(item.size for item in plain)
    assert len({*lengths}) == 3
    again = listed(encode_training(RunSettings.of(config).encoding, task, splits.train))
    assert all(np.array_equal(a.inputs, b.inputs) for a, b in zip(cuts, again, strict=True))
    config.seed += 1
    other = listed(encode_training(RunSettings.of(config).encoding, task, splits.train))
    assert any(not np.array_equal(a.inputs, b.inputs) for a, b in zip(cuts, other, strict=True))
    assert task.tokenizer is tokenizer
