"""Converts rows of a table to examples.

Tested by tests/data/readers/test_tables.py.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

from triptych.config import nearest
from triptych.data.example import AnswerSpan, Example, Message, SourceLocation, at, check_conversation, conversation

HALF_A_PAIR = re.compile("[\ud800-\udfff]")  # surrogates, which JSON can represent but UTF-8 cannot


class MissingColumnError(ValueError):
    """A table lacks a column that the configuration names.

    Args:
        field: field of ``Columns`` that names the column.
        message: for the user.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Columns:
    """The column of each field of ``Example``; None: no column. A column may be nested: ``translation.en``.

    If there are words, the text is the words joined by spaces. If there are messages, see ``conversation``. For audio
    and images, the text is the path of the file, which other classes read.
    """

    text: str | None = None
    target: str | None = None
    label: str | None = None
    text_pair: str | None = None
    score: str | None = None
    words: str | None = None
    tags: str | None = None
    answers: str | None = None
    messages: str | None = None
    audio: str | None = None
    speaker: str | None = None
    image: str | None = None

    @cached_property
    def items(self) -> Sequence[tuple[str, str]]:
        """The fields that have a column, with the column."""
        every = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, column) for name, column in every if column is not None]

    def check(self, there: Collection[str], where: str, advice: str = "") -> None:
        """Checks that a table has all columns.

        Args:
            there: columns of the table.
            where: start of the message.
            advice: end of the message.

        Raises:
            MissingColumnError: a column is missing.
        """
        for field, column in self.items:
            if outermost(column, there) not in there:
                raise MissingColumnError(
                    field,
                    f"{where}: no column {column} (data.{field}={column}); "
                    f"the columns are {', '.join(there)}{nearest(column, list(there))}{advice}",
                )

    def example(self, row: Mapping[str, object], place: SourceLocation) -> Example:
        """Converts a row to an example.

        Args:
            row: values by column.
            place: where the row was read from.

        Raises:
            ValueError: a missing column or an invalid value.
        """
        values: dict[str, Any] = {}
        for field, column in self.items:
            value = row[column] if column in row else self._inner(row, column, field, place)
            try:
                values[field] = PARSERS[field](value)
            except ValueError as error:
                shown = json.dumps(value, default=str)
                shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
                if not isinstance(value, str | int | float | list | dict | None):
                    shown += f" ({type(value).__name__})"  # a date, a decimal, bytes
                raise ValueError(f"{at(place)}: {column} is {shown}; {error}") from None
        if "messages" in values:
            return conversation(values["messages"], place)
        values.pop("speaker", None)  # the reader of the audio stores it
        name = values.pop("audio", "") or values.pop("image", "") or " ".join(values.get("words", ()))
        example = Example(**{"text": name, **values}, place=place)
        _check(example)
        return example

    def _inner(self, row: Mapping[str, object], column: str, field: str, place: SourceLocation) -> object:
        """The value of a nested column."""
        self.check(row, at(place))
        outer, _, inner = column.partition(".")
        value = row[outer]
        if value is None:
            raise ValueError(f"{at(place)}: {outer} is null; expected an object with {inner} (data.{field}={column})")
        if not isinstance(value, dict) or inner not in value:
            there = [f"{outer}.{name}" for name in value] if isinstance(value, dict) else [outer]
            raise ValueError(
                f"{at(place)}: no column {column} (data.{field}={column}); the columns are {', '.join(there)}"
                f"{nearest(column, there)}"
            )
        return value[inner]


def speaker_of(columns: Columns, row: Mapping[str, object]) -> str:
    """Returns the speaker of a row; empty without such a column."""
    return "" if columns.speaker is None else _label(row[columns.speaker])


def content_of(file: object) -> bytes | None:
    """Returns the content of a file that a Hugging Face dataset contains; None: it contains only the path."""
    return file.get("bytes") if isinstance(file, dict) else None


def outermost(column: str, there: Collection[str]) -> str:
    """Returns the column of the table that contains this column, or is this column."""
    return column if column in there else column.partition(".")[0]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a string")
    if HALF_A_PAIR.search(value):
        raise ValueError("expected a string without half a surrogate pair")
    return value


def _label(value: object) -> str:
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)  # "true", not Python's "True"
    if not isinstance(value, str) or not value or HALF_A_PAIR.search(value):
        raise ValueError("expected a label")
    return value


def _score(value: object) -> float:
    try:
        score = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("expected a finite number")
    return score


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise ValueError("expected a list of words, none of which is empty")
    return tuple(_text(word) for word in value)


def _tags(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("expected a list of tags")
    return tuple(_label(tag) for tag in value)


def _answers(value: object) -> tuple[AnswerSpan, ...]:
    """Parses a list of objects, as in SQuAD's files, or an object of lists, as in Hugging Face datasets."""
    expected = "expected objects with text and answer_start, or an object with lists of these"
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(expected)
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        pairs = [(answer.get("text"), answer.get("answer_start")) for answer in value]
    else:
        raise ValueError(expected)
    if not all(isinstance(text, str) and text and type(start) is int for text, start in pairs):
        raise ValueError(expected)
    return tuple(AnswerSpan(text, start) for text, start in pairs)


def as_messages(value: object) -> tuple[Message, ...]:
    """Parses a list of objects with role and content; other keys are ignored."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError("expected a list of objects with role and content")
    messages = [(message.get("role"), message.get("content")) for message in value]
    for i, said in enumerate(messages, 1):
        if not all(isinstance(part, str) and not HALF_A_PAIR.search(part) for part in said):
            raise ValueError(f"message {i}: expected strings for role and content")
    return tuple(Message(role, content) for role, content in messages)


def _conversation(value: object) -> tuple[Message, ...]:
    messages = as_messages(value)
    check_conversation(messages)
    return messages


def _file(kind: str, value: object) -> str:
    """Returns the path of a file. Hugging Face datasets contain the path, the bytes or both."""
    path = value.get("path") if isinstance(value, dict) else value
    if isinstance(value, dict) and value.get("bytes"):
        return str(path or kind)
    if not isinstance(path, str) or not path:
        raise ValueError(f"expected {kind}, or the path of a file")
    return path


PARSERS: Mapping[str, Callable[[object], object]] = {
    "text": _text,
    "target": _text,
    "label": _label,
    "text_pair": _text,
    "score": _score,
    "words": _words,
    "tags": _tags,
    "answers": _answers,
    "messages": _conversation,
    "audio": partial(_file, "a sound"),
    "speaker": _label,
    "image": partial(_file, "an image"),
}
"""Converts the value of a column to that of the field of ``Example``."""


def _check(example: Example) -> None:
    """Checks that words match tags, and that answers match their text."""
    words, tags = example.words, example.tags
    if words is not None and tags is not None and len(words) != len(tags):
        raise ValueError(f"{example.where}: {len(words)} words, but {len(tags)} tags")
    for answer in example.answers or ():
        context = example.text_pair or ""
        end = answer.start + len(answer.text)
        if answer.start < 0 or context[answer.start : end] != answer.text:
            there = context[max(answer.start, 0) : end]
            raise ValueError(
                f"{example.where}: expected the answer {answer.text[:60]!r} at character {answer.start} of its text, "
                f"found {there[:60]!r}"
            )
