"""A table, or a file of JSON, given to a corpus of running text, of lines or of words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from triptych.config import ConfigError
from triptych.data import Hub, LabelledText, ParallelText, PlainText, TaggedText, TextLines
from triptych.predict import check_input

SHARES = {"validation": 0.2, "test": 0.2}
CORPORA: dict[str, tuple[Callable[[Path, str], object], str]] = {
    "plain_text": (lambda d, name: PlainText(dir=str(d), train=name, **SHARES), "data.train="),
    "text_lines": (lambda d, name: TextLines(dir=str(d), train=name, **SHARES, split_seed=1), "data.train="),
    "parallel_text": (
        lambda d, name: ParallelText(dir=str(d), train=[name, name], **SHARES, split_seed=1), "data.train="
    ),
    "classes": (
        lambda d, name: LabelledText(
            dir=str(d), train={"a": name}, **SHARES, text="text", label="label", columns=None, split_seed=1
        ),
        "data.train=",
    ),
    "tagged_text": (
        lambda d, name: TaggedText(dir=str(d), train=name, **SHARES, column="upos", word=0, tag=-1, split_seed=1),
        "data.train=",
    ),
    "predict": (lambda d, name: check_input(str(d / name)), "input="),
}  # fmt: skip
READS = {"plain_text": (".csv", ".tsv", ".jsonl", ".parquet"), "tagged_text": (".tsv",), "predict": (".tsv", ".jsonl")}
TABLE = pd.DataFrame({"text": [f"text {i}" for i in range(9)], "target": [f"ziel {i}" for i in range(9)]})
WRITERS: dict[str, Callable[[Path], Any]] = {
    ".csv": lambda path: TABLE.to_csv(path, index=False),
    ".tsv": lambda path: TABLE.to_csv(path, index=False, sep="\t"),
    ".json": lambda path: TABLE.to_json(path, orient="records"),
    ".jsonl": lambda path: TABLE.to_json(path, orient="records", lines=True),
    ".ndjson": lambda path: TABLE.to_json(path, orient="records", lines=True),
    ".parquet": lambda path: TABLE.to_parquet(path),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("reader", CORPORA)
def test_is_rejected_by_its_name(tmp_path: Path, reader: str, kind: str) -> None:
    read, key = CORPORA[reader]
    for name in (f"x{kind}", f"x{kind.upper()}", f"x{kind}.gz"):
        WRITERS[kind](tmp_path / name)
        if kind in READS.get(reader, ()):
            read(tmp_path, name)
            continue
        with pytest.raises((ValueError, ConfigError)) as refusal:
            read(tmp_path, name)
        message = str(refusal.value)
        assert message.startswith(f"{key}{tmp_path / name if reader == 'predict' else name}: ")
        assert len(message.splitlines()) == 1


def test_the_corpus_that_is_named_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the refusals say is typed here as they say it."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    nothing = dict.fromkeys(("target", "label", "text_pair", "score", "words", "tags", "answers"))
    for kind, write in WRITERS.items():
        for file in folder.iterdir():
            file.unlink()
        write(folder / f"train{kind}")
        with pytest.raises(ValueError, match="data=") as refusal:
            CORPORA["text_lines"][0](folder, f"train{kind}")
        expected = [f"text {i}" for i in range(9)]
        if "data=labelled_text data.text=COLUMN data.label=null" in str(refusal.value):
            labelled = LabelledText(
                dir=str(folder), train=f"train{kind}", **SHARES, text="text", label=None, columns=None, split_seed=1
            ).splits()
            found = [*labelled.train, *labelled.validation, *labelled.test]
            assert sorted(example.text for example in found) == expected
        with pytest.raises(ValueError, match=f"data=hub data.name={folder} data.text=COLUMN data.target=COLUMN"):
            CORPORA["parallel_text"][0](folder, f"train{kind}")
        pairs = Hub(
            name=str(folder), config=None, split_names=["train", 0.2, 0.2], streaming=False, limit=None, split_seed=1,
            **nothing | {"text": "text", "target": "target"},
        ).splits()  # fmt: skip
        assert {(e.text, e.target) for e in pairs.train} <= set(TABLE.itertuples(index=False, name=None))


def test_documents_are_read_whatever_the_case_of_the_ending(tmp_path: Path) -> None:
    """A .JSONL is no running text."""
    rows = [{"text": f"document {i}"} for i in range(10)]
    (tmp_path / "x.JSONL").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    splits = PlainText(dir=str(tmp_path), train="x.JSONL", **SHARES).splits()
    assert [e.text for part in (splits.train, splits.validation, splits.test) for e in part] == [
        row["text"] for row in rows
    ]
