"""Tables that pandas, pyarrow and datasets wrote, and CoNLL-U that conllu wrote, beside what was given to them."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import conllu
import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, LargeList, List, Value

from triptych.data import (
    AnswerSpan,
    Conversations,
    Example,
    Hub,
    LabelledText,
    PlainText,
    QuestionAnsweringCorpus,
    TaggedText,
)
from triptych.data.readers.columns import Columns
from triptych.data.readers.tables import table_rows

TEXTS = [
    "plain", 'with "quotes"', '"all of it"', "a, comma; and 'more'", "  blanks  ", "ünïcödé 文字 🙂",
    "\\n is no line end", "NA", "null", "01", "1.0", "True", "# no comment", "=1+1", "two\nlines",
    "a\u2028b\x85c", 'ends with "', "back\\slash",
]  # fmt: skip
LINES = [text for text in TEXTS if "\n" not in text]
LABELS = ["01", "1", "NA", "a b", "é", "None"]
FRAME = pd.DataFrame({"text": TEXTS, "label": [LABELS[i % len(LABELS)] for i in range(len(TEXTS))]})
ROWS = list(FRAME.itertuples(index=False, name=None))


def read(path: Path, **columns: str) -> list[Example]:
    """The rows of a table."""
    found = Columns(**{"text": "text", "label": "label"} | columns)
    return [found.example(row, place) for place, row in table_rows(path, found)]


def texts_and_labels(path: Path) -> list[tuple[str, str | None]]:
    return [(example.text, example.label) for example in read(path)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_csv_by_pandas(tmp_path: Path, encoding: str, end: str, quoting: int, name: str) -> None:
    FRAME.to_csv(tmp_path / name, index=False, encoding=encoding, lineterminator=end, quoting=quoting)  # type: ignore[call-overload]
    assert texts_and_labels(tmp_path / name) == ROWS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tsv_by_pandas_without_quotes(tmp_path: Path, encoding: str, end: str) -> None:
    frame = FRAME[FRAME["text"].isin(LINES)]
    options: dict[str, Any] = {"sep": "\t", "index": False, "quoting": csv.QUOTE_NONE, "quotechar": "\x00"}
    frame.to_csv(tmp_path / "x.tsv", encoding=encoding, lineterminator=end, **options)
    assert texts_and_labels(tmp_path / "x.tsv") == list(frame.itertuples(index=False, name=None))


def test_quotes_of_csv_in_a_tsv_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pandas writes them unless it is told not to; many TSV files have quotes that are just text."""
    frame = pd.DataFrame({"text": ["plain", 'he said "no"', '"all"', "end"], "label": "a"})
    frame.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    assert read(tmp_path / "x.tsv")[1].text == '"he said ""no"""'
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "x.tsv: 2 fields are quoted as in CSV, first in line 3; the quotes are kept" in warning
    caplog.clear()
    frame.to_csv(tmp_path / "y.tsv", sep="\t", index=False, quoting=csv.QUOTE_NONE, quotechar="\x00")
    assert [example.text for example in read(tmp_path / "y.tsv")] == list(frame["text"])
    assert not caplog.records


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_jsonl_by_pandas(tmp_path: Path, ascii_only: bool, name: str) -> None:
    FRAME.to_json(tmp_path / name, orient="records", lines=True, force_ascii=ascii_only)
    assert texts_and_labels(tmp_path / name) == ROWS


def test_jsonl_by_datasets(tmp_path: Path) -> None:
    Dataset.from_pandas(FRAME).to_json(tmp_path / "x.jsonl")
    assert texts_and_labels(tmp_path / "x.jsonl") == ROWS


STRINGS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "dictionary of large strings": pa.dictionary(pa.int32(), pa.large_string()),
}


@pytest.mark.parametrize("kind", STRINGS)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_parquet_by_pyarrow(tmp_path: Path, kind: str, compression: str) -> None:
    columns = {name: pa.array(FRAME[name], STRINGS[kind]) for name in FRAME}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", compression=compression, row_group_size=5)
    assert texts_and_labels(tmp_path / "x.parquet") == ROWS


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pd.array([1, 0, 10**18], "Int64"), ["1", "0", str(10**18)]),
        (pd.array([True, False, True], "boolean"), ["true", "false", "true"]),
        (pd.Categorical(["b", "a", "b"]), ["b", "a", "b"]),
        (pd.Categorical([3, 1, 3]), ["3", "1", "3"]),
        (np.array([1, 2, 3], np.uint8), ["1", "2", "3"]),
        (np.array([0.5, 1.0, -2.0], np.float32), ["0.5", "1.0", "-2.0"]),
        (pd.array(["01", "NA", "x"], "string"), ["01", "NA", "x"]),
    ],
    ids=["nullable ints", "nullable booleans", "categories", "categories of numbers", "bytes", "floats", "strings"],
)
def test_labels_of_parquet_by_pandas(tmp_path: Path, labels: Any, expected: list[str]) -> None:
    pd.DataFrame({"text": ["a", "b", "c"], "label": labels}, index=[7, 8, 9]).to_parquet(tmp_path / "x.parquet")
    assert [example.label for example in read(tmp_path / "x.parquet")] == expected


@pytest.mark.parametrize(
    "labels",
    [
        pd.array([1, None, 2], "Int64"),
        pd.Categorical(["a", None, "b"]),
        [1.0, None, 2.0],
        pd.array(["a", None, "b"], "string"),
    ],
    ids=["ints", "categories", "floats", "strings"],
)
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_a_label_that_is_missing_is_named(tmp_path: Path, labels: Any, kind: str) -> None:
    frame, path = pd.DataFrame({"text": ["a", "b", "c"], "label": labels}), tmp_path / f"x.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"(row 2|line 2|line 3): label is (null|NaN|\"\"); expected a label"):
        read(path)


def test_columns_within_columns_of_parquet(tmp_path: Path) -> None:
    rows = [{"translation": {"en": f"a{i}", "de": f"b{i}"}, "a.b": f"c{i}"} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet", text="translation.en", target="translation.de", label="a.b")
    assert [(e.text, e.target, e.label) for e in found] == [(f"a{i}", f"b{i}", f"c{i}") for i in range(3)]


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
@pytest.mark.parametrize("kind", STRINGS)
def test_lists_of_parquet(tmp_path: Path, make: Any, kind: str) -> None:
    words = pa.array([["a", "b"], ["c", "d"]], make(pa.string())).cast(make(STRINGS[kind]))
    pq.write_table(pa.table({"words": words, "tags": words}), tmp_path / "x.parquet")
    columns = Columns(words="words", tags="tags")
    found = [columns.example(row, place) for place, row in table_rows(tmp_path / "x.parquet", columns)]
    assert [(e.words, e.tags) for e in found] == [(("a", "b"), ("a", "b")), (("c", "d"), ("c", "d"))]


def test_documents_by_pandas(tmp_path: Path) -> None:
    """Of each format that plain text is read from."""
    documents = pd.DataFrame({"text": [f'document {i}, "quoted"\nin lines' for i in range(10)]})
    documents.to_csv(tmp_path / "x.csv", index=False, lineterminator="\r\n")
    documents.to_json(tmp_path / "x.jsonl", orient="records", lines=True)
    documents.to_parquet(tmp_path / "x.parquet")
    for name in ("x.csv", "x.jsonl", "x.parquet"):
        splits = PlainText(dir=str(tmp_path), train=name, validation=0.2, test=0.2).splits()
        found = [example.text for part in (splits.train, splits.validation, splits.test) for example in part]
        assert found == list(documents["text"])


class TestHub:
    @pytest.fixture(autouse=True)
    def _cache(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")

    def corpus(self, folder: Path, **options: Any) -> Hub:
        columns = dict.fromkeys(("text", "target", "label", "text_pair", "score", "words", "tags", "answers"))
        given = {"config": None, "split_names": ["train", "train", "train"], "streaming": False, "limit": None}
        return Hub(**{"name": str(folder), "split_seed": 1} | columns | given | options)

    @pytest.mark.parametrize("form", ["numpy", "torch", "pandas", "arrow", None])
    def test_a_saved_folder_of_any_format(self, tmp_path: Path, form: str | None) -> None:
        """The format of a set, and the columns that it shows, are saved with it."""
        features = Features({
            "text": Value("large_string"), "label": ClassLabel(names=["neg", "pos"]), "score": Value("float32"),
            "words": LargeList(Value("string")), "tags": List(ClassLabel(names=["O", "B-X"])),
        })  # fmt: skip
        columns = {
            "text": ["a", "b"], "label": [1, 0], "score": [0.5, 2.0], "words": [["x", "y"]] * 2, "tags": [[1, 0]] * 2,
        }  # fmt: skip
        DatasetDict(
            train=Dataset.from_dict(columns, features=features).with_format(form, columns=["label"])
        ).save_to_disk(tmp_path / "saved")
        found = self.corpus(tmp_path / "saved", text="text", label="label", score="score").splits().test
        assert [(e.text, e.label, e.score) for e in found] == [("a", "pos", 0.5), ("b", "neg", 2.0)]
        tagged = self.corpus(tmp_path / "saved", words="words", tags="tags").splits().test
        assert [(e.words, e.tags) for e in tagged] == [(("x", "y"), ("B-X", "O"))] * 2

    def test_a_saved_choice_of_rows_in_several_files(self, tmp_path: Path) -> None:
        rows = Dataset.from_pandas(FRAME).shuffle(seed=1).select(range(9))
        DatasetDict(train=rows).save_to_disk(tmp_path / "saved", num_shards={"train": 3})
        found = self.corpus(tmp_path / "saved", text="text", label="label").splits().test
        assert [(e.text, e.label) for e in found] == list(zip(rows["text"], rows["label"], strict=True))

    @pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
    def test_files_by_pandas(self, tmp_path: Path, kind: str) -> None:
        writers = {"parquet": FRAME.to_parquet, "csv": lambda path: FRAME.to_csv(path, index=False)}
        writers["jsonl"] = lambda path: FRAME.to_json(path, orient="records", lines=True)
        writers[kind](tmp_path / f"train.{kind}")
        found = self.corpus(tmp_path, text="text", label="label").splits().test
        assert [(e.text, e.label) for e in found] == ROWS

    def test_nullable_numbers_are_classes(self, tmp_path: Path) -> None:
        pd.DataFrame({"text": ["a", "b"], "label": pd.array([3, 1], "Int64")}).to_parquet(tmp_path / "train.parquet")
        assert [e.label for e in self.corpus(tmp_path, text="text", label="label").splits().test] == ["3", "1"]


def test_questions_and_conversations_by_datasets(tmp_path: Path) -> None:
    """As the hub's data sets have them, in Parquet and JSON; other keys of a message may be null."""
    answers = [{"text": ["b"], "answer_start": [2]}, {"text": [], "answer_start": []}]
    asked = Dataset.from_dict({"question": ["q", "r"], "context": ["a b", "c"], "answers": answers})
    talk = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"}]]
    talks = Dataset.from_dict({"messages": talk * 10})
    for kind, write in (("parquet", "to_parquet"), ("jsonl", "to_json")):
        getattr(asked, write)(tmp_path / f"qa.{kind}")
        getattr(talks, write)(tmp_path / f"talks.{kind}")
        name = f"qa.{kind}"
        questions = QuestionAnsweringCorpus(
            dir=str(tmp_path), train=name, validation=name, test=name, text="question", text_pair="context",
            answers="answers", split_seed=1,
        )  # fmt: skip
        assert [e.answers for e in questions.splits().test] == [(AnswerSpan("b", 2),), ()]
        said = Conversations(
            dir=str(tmp_path), train=f"talks.{kind}", validation=0.2, test=0.2, messages="messages", split_seed=1
        )
        (first, *_) = said.splits().train
        assert [(m.role, m.content) for m in first.messages or ()] == [("user", "a"), ("assistant", "b")]


@pytest.mark.parametrize("column", ["upos", "xpos", "lemma", "feats", "deprel"])
def test_conllu_by_conllu(tmp_path: Path, column: str) -> None:
    """Comments, words of several tokens, and empty nodes among them."""
    words = [("Le", "DET"), ("#", "SYM"), ("vois", "VERB"), ("_", "PUNCT"), ("«\u00a0»", "PUNCT")]
    sentence = conllu.TokenList(metadata={"sent_id": "1", "text": "# Le\tvois", "newdoc id": "x"})
    for number, (word, tag) in enumerate(words, 1):
        token = dict.fromkeys(("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"))
        token |= {"id": number, "form": word, "upos": tag, "xpos": f"{tag}-x", "lemma": f"{word}l", "deprel": "dep"}
        sentence.append(conllu.Token(token | {"feats": {"Case": "Nom", "Number": "Sing"}, "head": 0}))
    sentence.insert(1, conllu.Token(sentence[0] | {"id": (1, "-", 2), "form": "Le#"}))
    sentence.append(conllu.Token(sentence[0] | {"id": (5, ".", 1), "form": "empty"}))
    content = sentence.serialize() * 3
    (tmp_path / "x.conllu").write_text(content, encoding="utf-8")
    corpus = TaggedText(
        dir=str(tmp_path), train="x.conllu", validation="x.conllu", test="x.conllu", column=column,  # type: ignore[arg-type]
        word=0, tag=-1, split_seed=1,
    )  # fmt: skip
    expected = [
        [
            (t["form"], "Case=Nom|Number=Sing" if column == "feats" else t[column])
            for t in found
            if isinstance(t["id"], int)
        ]
        for found in conllu.parse(content)
    ]
    assert [list(zip(e.words or (), e.tags or (), strict=True)) for e in corpus.splits().test] == expected


def test_labelled_text_by_pandas_is_the_frame(tmp_path: Path) -> None:
    """From the file to the splits, by the class that users name."""
    FRAME.to_csv(tmp_path / "x.csv", index=False)
    (tmp_path / "y.jsonl").write_text("".join(json.dumps(dict(zip(FRAME, row, strict=True))) + "\n" for row in ROWS))
    FRAME.to_parquet(tmp_path / "z.parquet")
    splits = LabelledText(
        dir=str(tmp_path), train="x.csv", validation="y.jsonl", test="z.parquet", text="text", label="label",
        columns=None, split_seed=1,
    ).splits()  # fmt: skip
    for part in (splits.train, splits.validation, splits.test):
        assert [(e.text, e.label) for e in part] == ROWS
