"""Questions that a part of a text answers."""

import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.data import AnswerSpan, Example, QuestionAnsweringCorpus

FORMS = ["squad", "squad 2.0", "hub", "parquet"]
Question = tuple[str, str, list[tuple[str, int]]]  # question, context, answers


def corpus(folder: Path, train: str, **options: Any) -> QuestionAnsweringCorpus:
    given = {"text": "question", "text_pair": "context", "answers": "answers", "split_seed": 1}
    return QuestionAnsweringCorpus(
        **{"dir": str(folder), "train": train, "validation": train, "test": train} | given | options
    )


def hub(row: Question) -> dict[str, Any]:
    texts, starts = [text for text, _ in row[2]], [start for _, start in row[2]]
    return {"id": "x", "question": row[0], "context": row[1], "answers": {"text": texts, "answer_start": starts}}


def squad(row: Question, i: int, **more: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start} for text, start in row[2]]
    asked = {"id": f"q{i}", "question": row[0], "answers": answers, **more}
    return {"title": "x", "paragraphs": [{"context": row[1], "qas": [asked]}]}


def written(folder: Path, form: str, rows: list[Question]) -> str:
    """The name of a file with these rows in one of the forms."""
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist([hub(row) for row in rows]), folder / "x.parquet")
        return "x.parquet"
    if form == "hub":
        with gzip.open(folder / "x.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(hub(row)) + "\n" for row in rows)
        return "x.jsonl.gz"
    more = [{"is_impossible": not row[2], "plausible_answers": []} if form == "squad 2.0" else {} for row in rows]
    data = [squad(row, i, **more[i]) for i, row in enumerate(rows)]
    (folder / "x.json").write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return "x.json"


any_text = st.text(st.sampled_from("\U0001f469\r\n\u2028") | st.characters(exclude_categories=["Cs"]), max_size=9)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    context, place = draw(any_text), st.integers(0, 9)
    cuts = [(context[start:end], start) for start, end in draw(st.lists(st.tuples(place, place), max_size=4))]
    return draw(any_text), context, [(text, start) for text, start in cuts if text]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(rows=st.lists(questions(), min_size=1, max_size=4))
def test_questions_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, form: str, rows: list[Question]
) -> None:
    """Each answer is at its place; a question without answers is kept."""
    folder = tmp_path_factory.getbasetemp()
    splits = corpus(folder, written(folder, form, rows)).splits()
    assert (
        splits.train
        == splits.test
        == [
            Example(question, text_pair=context, answers=tuple(AnswerSpan(*answer) for answer in answers))
            for question, context, answers in rows
        ]
    )
    for example in splits.train:
        assert example.text_pair is not None
        assert all(example.text_pair[a.start :].startswith(a.text) for a in example.answers or ())


PLACES = {"squad": "question q1", "squad 2.0": "question q1", "hub": "line 2", "parquet": "row 2"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("start", [-1, 0, 3, 5, 99])
def test_an_answer_that_is_not_at_its_place_is_rejected(tmp_path: Path, form: str, start: int) -> None:
    name = written(tmp_path, form, [("a?", "x", [("x", 0)]), ("b?", "a b c", [("a b c", 0), ("b c", start)])])
    said = rf"/{re.escape(name)}, {PLACES[form]}: expected the answer 'b c' at character {start} of its text, found '"
    with pytest.raises(ValueError, match=said):
        corpus(tmp_path, name).splits()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (None, "expected objects with text"),
        ("x", "expected objects with text"),
        ({"text": ["x"], "answer_start": []}, "expected objects with text"),
        ({"text": ["x"]}, "expected objects with text"),
        ([{"text": "x"}], "expected objects with text"),
        ([{"text": "", "answer_start": 0}], "expected objects with text"),
        ([{"text": "x", "answer_start": True}], "expected objects with text"),
        ([{"text": "x", "answer_start": 0.0}], "expected objects with text"),
    ],
)
def test_what_are_no_answers_is_rejected(tmp_path: Path, answers: object, said: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"question": "a?", "context": "x", "answers": answers}))
    with pytest.raises(ValueError, match=rf"/x\.jsonl, line 1: answers is .*; {said}"):
        corpus(tmp_path, "x.jsonl").splits()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r": not JSON \("),
        ('{"data": 1}', ": expected an object whose data is a list"),
        ("[]", ": expected an object whose data is a list"),
        ('{"data": [1]}', ", data 0: expected an object whose paragraphs is a list"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', ", data 0, paragraph 0: expected an object whose context"),
        ('{"data": [{"paragraphs": []}]}', ": no rows"),
        (json.dumps({"data": [squad(("a?", "x", []), 0, is_impossible=False)]}), ", question q0: is_impossible"),
        (json.dumps({"data": [squad(("a?", "x", [("x", 0)]), 0, is_impossible=True)]}), ", question q0: is_impossible"),
        (json.dumps({"data": [squad(("a?", "x", []), 0, answers=None)]}), ", question q0: expected an object"),
    ],
)  # fmt: skip
def test_a_bad_file_of_squad_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=rf"/x\.json{said}"):
        corpus(tmp_path, "x.json").splits()


def test_columns_have_the_names_that_are_given(tmp_path: Path) -> None:
    row = {"q": "a?", "passage": {"text": "x"}, "a": {"text": ["x"], "answer_start": [0]}}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    names = {"text": "q", "text_pair": "passage.text", "answers": "a"}
    assert corpus(tmp_path, "x.jsonl", **names).splits().train == [
        Example("a?", text_pair="x", answers=(AnswerSpan("x", 0),))
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row]), buffer)
    (tmp_path / "x.parquet").write_bytes(buffer.getvalue())
    assert corpus(tmp_path, "x.parquet", **names).splits() == corpus(tmp_path, "x.jsonl", **names).splits()
    for name, place in (("x.jsonl", "line 1"), ("x.parquet", "row 1")):
        said = (
            rf"/{re.escape(name)}, {place}: no column passage\.txt \(data\.text_pair=passage\.txt\); the columns are "
        )
        with pytest.raises(ValueError, match=rf"{said}passage\.text; did you mean passage\.text\?"):
            corpus(tmp_path, name, **names | {"text_pair": "passage.txt"}).splits()
