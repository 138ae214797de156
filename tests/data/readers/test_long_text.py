"""Long texts: pieces whose tokens are those of the whole, and shards that are written once and never used damaged."""

import gzip
import json
import multiprocessing
import os
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.config import RunError
from triptych.data import BPE, Bytes, Characters, LongText, PlainText, Tokenizer, Unigram, WordLevel, WordPiece
from triptych.data.batches import shards
from triptych.data.batches.shards import shard_of
from triptych.data.readers import long_text
from triptych.data.readers.long_text import Source, pieces_of

WORDS = [
    "a", "it's", "the", "'s", "3rd", "x2", "...", "Ä\u0301", "\u65e5\u672c", "\U0001f469\u200d", "don't!", "\x1c",
    "<eos>",
]  # fmt: skip
BLANKS = [" ", "\n", "  ", "\n\n", " \n", "\n ", "\t", "\xa0", "\u2028", "\r", "", "\x1d"]
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BLANKS)), max_size=60).map(
    lambda pairs: "".join(word + blank for word, blank in pairs)
)
SAMPLE = [
    word + blank + other for word in WORDS for other in WORDS for blank in BLANKS
] * 2 + BLANKS * 99  # merges within white space, too
TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": Bytes().train(SAMPLE),
    "characters": Characters().train(SAMPLE),
    "bpe": BPE(vocab_size=400).train(SAMPLE),
    "bpe, lower case": BPE(vocab_size=400, lowercase=True).train(SAMPLE),
    "words": WordLevel().train(SAMPLE),
    "wordpiece": WordPiece(vocab_size=200).train(SAMPLE),
    "unigram": Unigram(vocab_size=400).train(SAMPLE),
}


def cut(text: str, size: int, parts: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_text, "PIECE", size)
        return list(pieces_of(text[i : i + parts] for i in range(0, len(text), parts)))


@settings(max_examples=200)
@given(text=texts, size=st.integers(24, 60), parts=st.integers(1, 100))
@example(text="a \n\nthe  \n b\n'\n\n" * 20, size=24, parts=7)
def test_the_tokens_of_the_pieces_are_those_of_the_text(text: str, size: int, parts: int) -> None:
    pieces = cut(text, size, parts)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces)
    assert pieces == cut(text, size, 1)  # wherever the file was cut
    # Where no place of ``size`` characters may be cut, bytes and characters do not mind.
    is_cut_well = all(has_a_place(left + right, size) for left, right in pairwise(pieces))
    for name, tokenizer in TOKENIZERS.items():
        if is_cut_well or name in ("bytes", "characters"):
            (whole,) = tokenizer.encode([text])
            assert [i for ids in tokenizer.encode(pieces) for i in ids] == whole, name


def has_a_place(text: str, size: int) -> bool:
    """Whether there is a single line feed, or a single blank, between two other characters."""
    around = [(text[i - 1], text[i], text[i + 1]) for i in range(1, min(size, len(text) - 1))]
    return any(not a.isspace() and b in " \n" and not c.isspace() for a, b, c in around)


def write(folder: Path, *contents: str) -> tuple[Path, ...]:
    paths = tuple(folder / f"{i}.txt.gz" for i in range(len(contents)))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(gzip.compress(content.encode()))
    return paths


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_shard_is_its_part_of_the_files(tmp_path: Path) -> None:
    """Whatever the part, the files go on one from the other."""
    contents = ("It was\na dark", " and stormy night;\n", "", "the rain\nfell in torrents\n")
    files, text = write(tmp_path, *contents), "".join(contents)
    tokenizer = TOKENIZERS["bpe"]
    for start, stop in [(0, len(text)), (0, 1), (5, 20), (13, 30), (30, len(text)), (len(text) - 1, len(text))]:
        shard = shard_of(Source(files, None, start, stop), tokenizer, "train")
        assert shard.ids.dtype == np.uint16
        assert shard.ids.tolist() == tokenizer.encode([text[start:stop]])[0]
        assert shard.ends.tolist() == [0, len(shard.ids) - 1]


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    source = Source(write(tmp_path, "the\u00dfthe\u00df"), None, 0, 8)
    assert shard_of(source, TOKENIZERS["characters"], "train").num_unknown == 2
    assert shard_of(source, TOKENIZERS["bytes"], "train").num_unknown == 0


DAMAGES: dict[str, Any] = {
    "cut short": lambda content: content[:-3],
    "too long": lambda content: content + b"xx",
    "another byte": lambda content: b"\x07" + content[1:],
    "empty": lambda content: b"",
    "gone": None,
}


@pytest.mark.parametrize("which", ["bin", "json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_written_again(tmp_path: Path, cache: Path, damage: str, which: str) -> None:
    source, tokenizer = Source(write(tmp_path, "the rain " * 99), None, 0, 500), TOKENIZERS["bpe"]
    expected = shard_of(source, tokenizer, "train").ids.tolist()
    (file,) = (cache / "tokens").glob(f"*.{which}")
    before = file.stat()
    if DAMAGES[damage] is None:
        file.unlink()
    else:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # clocks of file systems are coarse
    assert shard_of(source, tokenizer, "train").ids.tolist() == expected


def test_what_is_there_is_not_made_again(tmp_path: Path, cache: Path) -> None:
    """Nor is a file read again that has not changed; one that has is."""
    files = write(tmp_path, "the rain\n")
    tokenizer = TOKENIZERS["bpe"]
    shard_of(Source(files, None, 0, 9), tokenizer, "train")
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.*")}
    shard_of(Source(files, None, 0, 9), tokenizer, "train")
    assert times == {path: path.stat().st_mtime_ns for path in cache.rglob("*.*")}
    write(tmp_path, "the pain\n")
    os.utime(files[0], ns=(0, 1))
    assert shard_of(Source(files, None, 0, 9), tokenizer, "train").ids.tolist() == tokenizer.encode(["the pain\n"])[0]


def in_processes(work: Callable[[], None], count: int = 1) -> None:
    """Does it in several processes at once."""
    jobs = [multiprocessing.get_context("fork").Process(target=work) for _ in range(count)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
        assert job.exitcode == 0


def test_jobs_that_start_at_once_tokenise_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, write_shard = Source(write(tmp_path, "the rain " * 30_000), None, 0, 200_000), shards._write

    def write_and_note(*arguments: Any) -> Any:
        with open(tmp_path / "written", "a") as file:
            file.write("once ")
        return write_shard(*arguments)

    def work() -> None:
        assert len(shard_of(source, TOKENIZERS["bytes"], "train").ids) == 200_000

    monkeypatch.setattr(shards, "_write", write_and_note)
    in_processes(work, 3)
    assert (tmp_path / "written").read_text() == "once "


def test_a_full_disk_and_a_folder_that_is_none_are_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(write(tmp_path, "the rain " * 3000), None, 0, 20_000)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))
        with pytest.raises(RunError, match=r"^/.*\.bin cannot be written \(File too large\); [\d,]+ bytes are free"):
            shard_of(source, TOKENIZERS["bytes"], "train")

    in_processes(work)
    assert {path.suffix for path in (cache / "tokens").iterdir()} == {".lock"}
    monkeypatch.setenv("TRIPTYCH_CACHE", str(source.files[0]))
    answer = r"^the cache /.*/files cannot be written \(.*\)\. To use another folder, set .* TRIPTYCH_CACHE=FOLDER"
    with pytest.raises(RunError, match=answer):
        shard_of(source, TOKENIZERS["bytes"], "train")


class TestMixture:
    def corpus(self, folder: Path, **options: Any) -> PlainText:
        for name in ("a1", "a2", "b"):
            (folder / f"{name}.txt").write_text(name * 50)
        return PlainText(**{"dir": str(folder), "train": "b.txt", "validation": 0.1, "test": 0.1} | options)

    def test_several_files_are_one_text(self, tmp_path: Path) -> None:
        for train in (["a1.txt", "a2.txt"], "a?.txt", ["a[12].txt"]):
            splits = self.corpus(tmp_path, train=train).splits()
            parts = ["".join(e.text for e in split) for split in (splits.train, splits.validation, splits.test)]
            assert "".join(parts) == "a1" * 50 + "a2" * 50
            assert [len(part) for part in parts] == [160, 20, 20]

    def test_shares_are_cut_from_each_corpus(self, tmp_path: Path) -> None:
        splits = self.corpus(tmp_path, train={"a*.txt": 3, "b.txt": 0.5}, test=["a1.txt", "b.txt"]).splits()
        assert isinstance(splits.train, LongText)
        assert isinstance(splits.validation, LongText)
        assert isinstance(splits.test, LongText)
        assert [(s.start, s.stop, s.weight) for s in splits.train.sources] == [(0, 180, 3), (0, 45, 0.5)]
        assert [(s.start, s.stop) for s in splits.validation.sources] == [(180, 200), (45, 50)]
        assert [(len(s.files), s.start, s.stop) for s in splits.test.sources] == [(2, 0, 150)]
        assert str(splits.train) == "225 characters"

    @pytest.mark.parametrize(
        ("train", "message"),
        [
            ({"b.txt": 0}, r"^data\.train\.b\.txt=0: expected a weight above 0$"),
            ({"b.txt": -1.0}, r"^data\.train\.b\.txt=-1\.0: expected a weight above 0$"),
            ({}, r"^data\.train=\{\}: expected the name of a file$"),
            ([], r"^data\.train=\[\]: expected the name of a file$"),
            ("c*.txt", r"^data\.train=c\*\.txt: no such file"),
            (["b.txt", "c.txt"], r"^data\.train=c\.txt: no such file in .*; did you mean b\.txt\?$"),
            (["b.txt", "?.txt"], r"^data\.train=\['b\.txt', '\?\.txt'\]: expected each file once$"),
            (["b.txt", "b.jsonl"], r"^data\.train: b\.jsonl is a table and b\.txt plain text; expected one kind$"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, train: Any, message: str) -> None:
        (tmp_path / "b.jsonl").write_text(json.dumps({"text": "b"}))
        with pytest.raises(ValueError, match=message):
            self.corpus(tmp_path, train=train)


DOCUMENTS = ["The rain,\nin torrents.", "", '\U0001f469\u200d "said" it\'s\tover', "x" * 200_000, "the end"]
TABLES: dict[str, Callable[[Path, list[str]], object]] = {
    "x.jsonl.gz": lambda path, texts: path.write_bytes(
        gzip.compress("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(texts)).encode())
    ),
    "x.csv.zst": lambda path, texts: path.write_bytes(
        pa.compress(
            "".join('"{}"\r\n'.format(t.replace('"', '""')) for t in ["body", *texts]).encode(), "zstd", asbytes=True
        )
    ),
    "x.parquet": lambda path, texts: pq.write_table(pa.table({"body": texts}), path),
}


@pytest.mark.parametrize("name", TABLES)
def test_documents_end_with_eos(tmp_path: Path, name: str) -> None:
    """And eos stands before the first. Shares are whole documents."""
    TABLES[name](tmp_path / name, DOCUMENTS)
    corpus = PlainText(dir=str(tmp_path), train=name, validation=0.2, test=0.4, text="body")
    splits = corpus.splits()
    assert [str(split) for split in (splits.train, splits.validation, splits.test)] == [
        "2 documents",
        "1 documents",
        "2 documents",
    ]
    tokenizer = TOKENIZERS["bpe"]
    eos = tokenizer.special.eos
    for split, texts in (
        (splits.train, DOCUMENTS[:2]),
        (splits.validation, DOCUMENTS[2:3]),
        (splits.test, DOCUMENTS[3:]),
    ):
        assert isinstance(split, LongText)
        assert [example.text for example in split] == texts
        shard = shard_of(split.sources[0], tokenizer, "it")
        assert shard.ids.tolist() == [eos, *(i for ids in tokenizer.encode(texts) for i in [*ids, eos])]
        found = [shard.ids[a + 1 : b].tolist() for a, b in pairwise(shard.ends)]
        assert found == tokenizer.encode(texts)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    TABLES["x.parquet"](tmp_path / "x.parquet", DOCUMENTS)
    with pytest.raises(ValueError, match=r"x\.parquet: no column text \(data\.text=text\); the columns are body"):
        PlainText(dir=str(tmp_path), train="x.parquet", validation=0.2, test=0.4).splits()
