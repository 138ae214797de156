"""Conversations in tables, and as examples."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from triptych.data import Conversations, Hub, Message
from triptych.data.example import conversation, each_answer
from triptych.data.example_columns import ExampleColumns

ROLES = ("user", "assistant")


def messages(*contents: str) -> list[dict[str, str]]:
    return [{"role": ROLES[i % 2], "content": content} for i, content in enumerate(contents)]


TALKS = [messages("a", "b", "c", "d"), messages("e", "f"), [{"role": "system", "content": "s"}, *messages("g", "h")]]


def corpus(folder: Path, rows: list[Any], **options: Any) -> Conversations:
    (folder / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings: dict[str, Any] = {"train": "talks.jsonl", "validation": None, "test": "talks.jsonl"}
    return Conversations(dir=str(folder), messages="messages", split_seed=1, **settings | options)


def test_each_answer_of_an_evaluation_is_an_example(tmp_path: Path) -> None:
    splits = corpus(tmp_path, [{"messages": talk, "more": 1} for talk in TALKS]).splits()
    assert [[(m.role, m.content) for m in e.messages or ()] for e in splits.train] == [
        [(m["role"], m["content"]) for m in talk] for talk in TALKS
    ]
    assert [(e.text, e.target, e.difficulty, e.place) for e in splits.test] == [
        ("a", "b", {"turn": 1}, (tmp_path / "talks.jsonl", 1)),
        ("a\nb\nc", "d", {"turn": 2}, (tmp_path / "talks.jsonl", 1)),
        ("e", "f", {"turn": 1}, (tmp_path / "talks.jsonl", 2)),
        ("s\ng", "h", {"turn": 1}, (tmp_path / "talks.jsonl", 3)),
    ]


def test_parquet_and_data_sets_of_the_hub(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"talk": TALKS[:2]}), tmp_path / "talks.parquet")
    settings: dict[str, Any] = {"train": "talks.parquet", "validation": None, "test": 0.5, "split_seed": 1}
    splits = Conversations(dir=str(tmp_path), messages="talk", **settings).splits()
    DatasetDict(train=Dataset.from_dict({"talk": TALKS[:2]})).save_to_disk(str(tmp_path / "set"))
    columns = ("target", "label", "text_pair", "score", "words", "tags", "answers")
    hub = Hub(
        name=str(tmp_path / "set"), config=None, split_names=["train", "train", "train"], streaming=False, limit=None,
        text="text", **dict.fromkeys(columns), split_seed=1, messages="talk",
    ).splits()  # fmt: skip
    assert [e.target for e in hub.train] == ["d", "f"]
    assert [e.target for e in hub.test] == ["b", "d", "f"]
    assert len(splits.train) == 1
    assert {e.target for e in (*splits.train, *splits.test)} in ({"b", "d", "f"}, {"d", "f"})


def test_what_was_made_is_kept_as_it_is() -> None:
    talk = conversation(
        [Message("user", "é"), Message("assistant", "b"), Message("user", "c"), Message("assistant", "d")]
    )
    examples = [talk, *each_answer(talk)]
    kept = ExampleColumns.of(examples)
    assert list(kept) == examples
    assert [example.difficulty for example in kept] == [example.difficulty for example in examples]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, r"line 2: messages is \[\]; an empty conversation"),
        ({"messages": "hi"}, 'line 2: messages is "hi"; expected a list of objects with role and content'),
        ({"messages": [{"role": "user"}]}, "message 1: expected strings for role and content"),
        ({"messages": [{"from": "human", "value": "a"}]}, "message 1: expected strings for role and content"),
        ({"messages": [*messages("a", "b")[1:]]}, "message 1: 'assistant' out of turn"),
        ({"messages": messages("a", "b", "c")}, "the last message has the role 'user'; expected 'assistant'"),
        ({"messages": messages("a", " ")}, "message 2 of assistant is empty"),
        ({"messages": messages("a\ud800", "b")}, "message 1: expected strings for role and content"),
        (
            {"message": messages("a", "b")},
            r"line 2: no column messages .* the columns are message; did you mean message\?",
        ),
    ],
)
def test_what_is_no_conversation(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        corpus(tmp_path, [{"messages": TALKS[0]}, row]).splits()


def test_a_table_that_cannot_hold_conversations(tmp_path: Path) -> None:
    (tmp_path / "talks.csv").write_text("messages\n[]\n")
    with pytest.raises(ValueError, match=r"talks.csv.*\.jsonl, \.parquet"):
        corpus(tmp_path, [], train="talks.csv", test=0.1)
