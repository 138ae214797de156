"""Examples that are drawn once, and texts that are laid out once."""

import pickle
import re
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

import tiny
from command_line import complete
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import make_task
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import build
from triptych.config.run_settings import RunSettings
from triptych.data import IGNORE_INDEX, AnswerSpan, DataModule, EncodedExample, Example, collate, example_columns
from triptych.data.batches.arrays import EncodedArrays, EncodingStats
from triptych.data.corpora import example_cache
from triptych.data.corpora.corpus import CorpusInfo, sha256
from triptych.data.corpora.example_cache import read_optimum, read_splits
from triptych.data.corpora.labelled_text import LabelledText
from triptych.data.example_columns import ExampleColumns
from triptych.data.overlap import find_overlap
from triptych.data.splits import Splits
from triptych.storage import array_files

TEXT = st.text(max_size=8)
WORDS = st.lists(TEXT, max_size=3).map(tuple)
EXAMPLES = st.builds(
    Example,
    TEXT,
    target=st.none() | TEXT,
    label=st.none() | TEXT,
    words=st.none() | WORDS,
    tags=st.none() | st.lists(st.none() | TEXT, max_size=3).map(tuple),
    text_pair=st.none() | TEXT,
    score=st.none() | st.floats(allow_nan=False),
    answers=st.none() | st.lists(st.builds(AnswerSpan, TEXT, st.integers(0, 99)), max_size=2).map(tuple),
    difficulty=st.none() | st.dictionaries(TEXT, st.integers(0, 99), max_size=2),
    place=st.none() | st.tuples(st.sampled_from([Path("a"), Path("b")]), st.integers(0, 99) | st.just("row 7")),
)
NOTHING_LOST = EncodingStats(lines=0, too_long=0, tokens=0, unknown=0)


@given(st.lists(EXAMPLES, max_size=5), st.integers(1, 6), st.integers(0, 31))
def test_examples_come_back_as_they_were(examples: list[Example], at_once: int, chosen: int) -> None:
    """Converted some at a time, and only those that were chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_columns, "AT_ONCE", at_once)
        kept = ExampleColumns.of(iter(examples))
        assert list(kept) == examples
        assert list(kept.texts("target")) == [example.target for example in examples]
        flags = [bool(chosen & 1 << i) for i in range(len(examples))]
        assert kept.keep(np.array(flags, bool)) == [*compress(examples, flags)]
    for name in ("difficulty", "place"):
        assert [getattr(example, name) for example in kept] == [getattr(example, name) for example in examples]
    assert kept[1:] == examples[1:]
    assert kept[-2:] == examples[-2:]
    with pytest.raises(IndexError):
        kept[len(examples)]


SOME = st.none() | st.sampled_from(["a", "a  b", " a b", "'", "\u2028", "{}"])
ONLY_TEXTS = st.builds(Example, SOME.map(str), target=SOME, label=SOME, text_pair=SOME)


@given(st.lists(ONLY_TEXTS, max_size=6) | st.lists(EXAMPLES, max_size=3))
def test_columns_have_the_digest_and_overlap_of_their_examples(examples: list[Example]) -> None:
    kept = ExampleColumns.of(examples)
    assert sha256(Splits(kept, [], kept)) == sha256(Splits(examples, [], examples))
    others = examples[::2]
    assert find_overlap(kept, {"test": others}) == find_overlap(examples, {"test": others})
    assert find_overlap(others, {"test": kept}) == find_overlap(others, {"test": examples})


ROW = st.lists(st.integers(0, 300), min_size=1, max_size=7).map(np.array)
LABEL = st.integers(0, 9) | st.just(IGNORE_INDEX)


@st.composite
def splits(draw: Callable[..., Any]) -> tuple[list[EncodedExample], list[Example]]:
    """With a source or without, labelled by token or as a whole."""
    has_source, is_whole = draw(st.booleans()), draw(st.booleans())
    examples = [Example(str(i)) for i in range(draw(st.integers(1, 6)))]
    items = []
    for example in examples:
        tokens = draw(ROW)
        count = 1 if is_whole else len(tokens)
        labels = np.array(draw(st.lists(LABEL, min_size=count, max_size=count)))
        items.append(
            EncodedExample(tokens, labels, draw(ROW) if has_source else None, draw(st.integers(0, 3)), example)
        )
    return items, examples


@given(splits(), st.data(), st.booleans())
def test_a_batch_is_that_of_each_by_itself(
    split: tuple[list[EncodedExample], list[Example]], data: st.DataObject, packed: bool
) -> None:
    items, examples = split
    encoded = EncodedArrays.of(items, examples, NOTHING_LOST)
    indices = np.array(data.draw(st.lists(st.integers(0, len(items) - 1), min_size=1, max_size=8)))
    chosen = [items[i] for i in indices]
    assert encoded.sizes.tolist() == [item.size for item in items]
    assert encoded.num_scored.tolist() == [item.num_scored for item in items]
    found = encoded.collate(indices, 7, packed=packed)
    expected = collate(chosen, 7, packed=packed, indices=indices)
    assert vars(found).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        own = getattr(found, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(own, value), name
            assert own.dtype == value.dtype, name
        elif name in ("examples", "indices"):
            assert list(own) == list(value)
        else:
            assert own == value, name
    assert pickle.loads(pickle.dumps(found.examples)) == [item.example for item in chosen]


def read(config: DictConfig) -> tuple[Any, DataModule]:
    """The splits and the batches of a training."""
    config = config.copy()
    _, found, info = read_corpus(config, "data")
    tokenizer = train_tokenizer(config, found)
    complete(config, tokenizer, info)
    return found, make_data_module(RunSettings.of(config), make_task(RunSettings.of(config), tokenizer, info), found)


def same(one: DataModule, other: DataModule) -> bool:
    """Whether all splits are laid out alike."""
    return all(
        np.array_equal(a[name], b[name])
        for split in ("train", "validation", "test")
        for a, b in [(getattr(one, split).as_arrays(), getattr(other, split).as_arrays())]
        for name in {**a, **b}
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


SMALL = ["data.num_train=300", "data.num_validation=40", "data.num_test=40"]
DRAWN = [
    ["experiment=dates/translation", *tiny.TINY],
    ["experiment=dates/tagging", "model=decoder_only", *SMALL],
    ["experiment=dates/question_answering", "model=full", *SMALL],
    ["experiment=synthetic/list_ops", *SMALL],
]


@pytest.mark.parametrize("overrides", DRAWN, ids=lambda overrides: overrides[0].rpartition("/")[2])
def test_the_second_time_nothing_is_drawn_or_laid_out(
    overrides: list[str], chosen: Callable[..., DictConfig], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = chosen(*overrides)
    drawn, first = read(config)
    assert len([*cache.glob("*/*.npz")]) == 4

    def refuse(*_: object) -> None:
        raise AssertionError("it is done again")

    monkeypatch.setattr(type(build(config, "data")), "splits", refuse)
    monkeypatch.setattr("triptych.assembly.encode_splits.lay_out", refuse)
    kept, second = read(config)
    assert [*kept.train] == [*drawn.train]
    assert [*kept.test] == [*drawn.test]
    assert same(first, second)
    assert second.test[3].example == drawn.test[3] != drawn.test[4]
    monkeypatch.undo()
    monkeypatch.setenv("TRIPTYCH_CACHE", str(cache))
    for path in cache.glob("laid_out/*"):
        path.unlink()
    _, third = read(config)  # of examples that are kept
    assert same(first, third)
    assert third.test[3].example == drawn.test[3]


def test_what_differs_is_laid_out_again(chosen: Callable[..., DictConfig], cache: Path) -> None:
    given = ["experiment=dates/translation", *tiny.TINY]
    read(chosen(*given))
    for overrides, examples, laid_out in (
        (["seed=2", "optimizer.lr=1"], 1, 3),
        (["shape.max_length=127"], 1, 6),
        (["model=decoder_only"], 1, 9),
        (["tokenizer=bytes"], 1, 12),
        (["data.seed=2"], 2, 15),
    ):
        read(chosen(*given, *overrides))
        assert len([*cache.glob("examples/*.npz")]) == examples, overrides
        assert len([*cache.glob("laid_out/*.npz")]) == laid_out, overrides


def test_the_best_score_is_found_once(
    chosen: Callable[..., DictConfig], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        chosen("experiment=dates/classification", "data.styles=[short]", f"data.languages=[{languages}]", *SMALL)
        for languages in ("fr,pt", "de,ja")
    )
    found, asked = [], 0
    for config in (first, second, first):
        corpus, splits, _ = read_corpus(config, "dates")
        find = corpus.optimum

        def count(*given: Any, find: Any = find) -> dict[str, float]:
            nonlocal asked
            asked += 1
            return find(*given)

        monkeypatch.setattr(corpus, "optimum", count)
        settings = OmegaConf.to_container(config.data, resolve=True)
        found += [read_optimum(corpus, settings, task, "full", splits.test) for task in ("classification", "tagging")]
        assert found[-2:] == [find(task, "full", splits.test) for task in ("classification", "tagging")]
    assert asked == 4
    assert found[0] != found[2]
    assert found[4:] == found[:2]


def test_what_follows_from_the_seed_is_not_kept(chosen: Callable[..., DictConfig], cache: Path) -> None:
    read(chosen("experiment=dates/denoising", *SMALL))
    assert not [*cache.glob("laid_out/*.npz")]
    cuts = ["tokenizer=bpe", "tokenizer.vocab_size=400", "batch.bpe_dropout=0.5", "batch.bpe_dropout_copies=2"]
    read(chosen("experiment=dates/translation", *SMALL, *cuts))
    assert len([*cache.glob("laid_out/*.npz")]) == 2  # validation and test


def test_code_of_others_is_not_known(
    chosen: Callable[..., DictConfig], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = chosen("experiment=dates/translation", *tiny.TINY)
    monkeypatch.setenv("TRIPTYCH_ALLOW", "mine")
    monkeypatch.setattr(type(build(config, "data")), "__module__", "mine")
    monkeypatch.setattr("triptych.tasks.Translation.__module__", "mine")
    read(config)
    assert not [*cache.glob("*/*.npz")]


def test_a_damaged_file_is_made_again(
    chosen: Callable[..., DictConfig], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = chosen("experiment=dates/translation", *tiny.TINY)
    drawn, first = read(config)
    examples = [*drawn.train]  # they are mapped
    for path in cache.glob("*/*.npz"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    again, second = read(config)
    assert [*again.train] == examples
    assert same(first, second)
    for path in cache.glob("*/*.npz"):
        assert f"{path} is damaged (a checksum differs), and is made again" in caplog.messages
        path.write_bytes(path.read_bytes()[:-9])
    assert same(first, read(config)[1])


def test_a_full_disk_costs_a_warning_with_the_size(
    chosen: Callable[..., DictConfig], cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(array_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=99))
    splits, _ = read(chosen("experiment=dates/translation", *tiny.TINY))
    assert len(splits.train)
    assert not [*cache.glob("*/*.npz")]
    said = r"the examples are not cached: \S+ cannot be written: it needs [\d,]+ bytes; 99 are free"
    assert any(re.fullmatch(said, message) for message in caplog.messages)


def test_a_cache_that_cannot_be_written_costs_a_warning(
    chosen: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", "/proc/nowhere")
    config = chosen("experiment=dates/translation", *tiny.TINY)
    assert len(read(config)[0].train) == config.data.num_train
    for words in ("the examples are not cached", "the tokenizer is not cached", "encoded examples are not cached"):
        assert words in caplog.text


def test_what_is_lost_is_said_each_time(
    chosen: Callable[..., DictConfig], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = chosen("experiment=dates/translation", *tiny.TINY, "shape.max_length=12", "batch.too_long=truncate")
    said = []
    for _ in range(2):
        caplog.clear()
        read(config)
        said.append([line for line in caplog.messages if "shape.max_length=12" in line])
    assert said[0] == said[1]
    assert len(said[0]) == 3


def test_what_was_read_long_ago_makes_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    monkeypatch.setattr(array_files, "MOST_BYTES", 2500)
    for name in "abc":
        array_files.write_arrays(cache / f"{name}.npz", {"zeros": np.zeros(100)})
        for other in "ab":
            array_files.read_arrays(cache / f"{other}.npz")
    assert sorted(path.stem for path in cache.glob("*.npz")) == ["b", "c"]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=20),
    has_source=st.booleans(),
    batch_size=st.integers(1, 6),
)
def test_padding_is_what_padded_batches_have(sizes: list[tuple[int, int]], has_source: bool, batch_size: int) -> None:
    items = [
        EncodedExample(
            np.ones(length, np.int64), np.ones(1, np.int64), np.ones(source, np.int64) if has_source else None
        )
        for length, source in sizes
    ]
    encoded = EncodedArrays.of(items, [], NOTHING_LOST)
    order = np.argsort(encoded.sizes, kind="stable")
    batches = [encoded.collate(order[i : i + batch_size], 1) for i in range(0, len(order), batch_size)]
    masks = [mask for batch in batches for mask in (batch.mask, batch.source_mask) if mask is not None]
    real, positions = (sum(int(count(mask)) for mask in masks) for count in (torch.sum, torch.numel))
    assert encoded.padding(batch_size, None) == pytest.approx(1 - real / positions)


@pytest.mark.parametrize(
    ("overrides", "packed"),
    [
        ([], True),
        (["batch.global_size=1"], False),  # nothing to fill up
        (["batch.global_size=null", "batch.max_tokens=4000"], True),
        (["batch.packing=false"], False),
        (["batch.global_size=1", "batch.packing=true"], True),
        (["trainer.accelerator=gpu"], False),
    ],
)
def test_packed_where_that_is_faster(
    overrides: list[str], packed: bool, chosen: Callable[..., DictConfig], cache: Path
) -> None:
    _, data = read(
        chosen("experiment=dates/translation", "model=full", *tiny.DATES, "batch.global_size=400", *overrides)
    )
    assert data.packed is packed


def test_a_text_file_is_read_once_until_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Examples, classes, places, the digest and warnings are the same from the file and from the cache."""
    table = tmp_path / "rows.tsv"
    table.write_text("text\tlabel\n" + "".join(f'"a ""{number}"""\tclass {number % 3}\n' for number in range(50)))
    settings = {"dir": str(tmp_path), "train": "rows.tsv", "validation": 0.2, "test": 0.2, "split_seed": 1}

    def read_again() -> tuple[Splits, CorpusInfo, list[str]]:
        caplog.clear()
        corpus = LabelledText(text="text", label="label", columns=None, **settings)  # type: ignore[arg-type]
        return *read_splits(corpus, settings), caplog.messages

    plain, info, warnings = read_again()  # the file is small
    monkeypatch.setattr(example_cache, "LEAST_BYTES", 0)
    assert not cache.exists()
    assert "50 fields are quoted" in warnings[0]
    for is_cached in (False, True):
        with monkeypatch.context() as patch:
            if is_cached:
                patch.setattr(LabelledText, "rows", None)  # the file is not read
            splits, found, repeated = read_again()
        assert (found, repeated) == (info, warnings)
        for name in ("train", "validation", "test"):
            expected, kept = getattr(plain, name), getattr(splits, name)
            assert isinstance(kept, ExampleColumns)
            assert [*kept] == [*expected]
            assert [example.place for example in kept] == [example.place for example in expected]
    table.write_text(table.read_text() + "b\tanother class\n")
    changed, found, _ = read_again()
    assert found.sha256 != info.sha256
    assert sum(len(getattr(changed, name)) for name in ("train", "validation", "test")) == 51
