"""Examples as columns of text.

Tested by tests/data/corpora/test_example_cache.py.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import eq
from pathlib import Path
from typing import Any, Self, TypeVar, overload

import numpy as np
from jaxtyping import Bool

from triptych.data.example import AnswerSpan, Example, Message, SourceLocation, without_collection
from triptych.data.file_examples import outlines_of
from triptych.data.readers.columns import HALF_A_PAIR, Columns
from triptych.data.readers.tables import Row

TEXTS = ("text", "target", "label", "text_pair")
"""Fields with a separate column."""
OTHERS = ("words", "tags", "score", "answers", "messages", "difficulty")
"""The others, which share a column."""
MORE, ROW = "more", "row"
"""The column of the others, JSON objects; and that of places that are not lines, such as "row 7"."""
FIELDS = (*TEXTS, MORE, ROW)
AT_ONCE = 10_000
"""Examples that are converted at once."""

Item = TypeVar("Item")
Arrays = Mapping[str, np.ndarray]
"""``NAME`` and ``NAME_ends`` are the concatenated texts of a field, and their ends. Where some examples lack it,
``NAME_known`` tells which have it. Columns without any text are left out. ``file`` is the number of the file, or -1;
``line`` the number of the line, or -1 if the column ``row`` describes the place instead."""
Parts = dict[str, np.ndarray]
"""The columns of some examples with lengths in place of ends."""
EMPTY: Parts = {"file": np.empty(0, np.int32), "line": np.empty(0, np.int64)}


class ExampleColumns(Sequence[Example]):
    """Examples without images and audio, as columns in a tenth of the memory of objects. The columns may be mapped into
    memory.

    Args:
        columns: see ``Arrays``.
        files: the files of ``file``.
        key: see ``InMemoryExamples``; empty: unknown.
    """

    def __init__(self, columns: Arrays, files: Sequence[Path] = (), key: str = "") -> None:
        self.columns, self.files, self.key = columns, files, key
        self._names = [name for name in FIELDS if name in columns]

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Self:
        """Converts examples, which may be read meanwhile."""
        return cls._join(examples, _columns_of)

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[SourceLocation, Row]], reader: Columns) -> Self:
        """Converts rows of a table, each with its place, which may be read meanwhile.

        Raises:
            ValueError: an invalid value, with its place.
        """

        def convert(block: Sequence[tuple[SourceLocation, Row]], files: dict[Path, int]) -> Parts:
            places = [place for place, _ in block]
            if (texts := _plain_texts(block, reader)) is not None:
                return _text_columns(texts, places, files)
            return _columns_of([reader.example(row, place) for place, row in block], files)

        return cls._join(rows, convert)

    @classmethod
    @without_collection()
    def _join(cls, items: Iterable[Item], convert: Callable[[list[Item], dict[Path, int]], Parts]) -> Self:
        files, left, count = dict[Path, int](), iter(items), 0
        buffers, types = (
            defaultdict[str, bytearray](bytearray),
            dict[str, np.dtype](),
        )  # a list would need twice as much
        while block := list(islice(left, AT_ONCE)):
            for name, values in convert(block, files).items():
                types[name] = values.dtype
                _pad(buffers[name], name, count * values.itemsize)
                buffers[name] += values.data
            count += len(block)
        for name, buffer in buffers.items():
            _pad(buffer, name, count * types[name].itemsize)
        parts: Parts = {name: np.frombuffer(buffer, types[name]) for name, buffer in buffers.items()}
        return cls(_compact({**EMPTY, **parts}), [*files])

    def keep(self, kept: Bool[np.ndarray, " examples"]) -> "ExampleColumns":
        """Returns some of the examples."""
        columns: Parts = {"file": self.columns["file"][kept], "line": self.columns["line"][kept]}
        runs = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2)
        for name in self._names:
            ends = self.columns[f"{name}_ends"]
            texts = [self.columns[name][a:b] for a, b in np.append(0, ends)[runs].tolist()]
            columns[name] = np.concatenate([np.empty(0, np.uint8), *texts])
            columns[f"{name}_lengths"] = np.diff(ends, prepend=0)[kept]
            columns[f"{name}_known"] = self._known(name, slice(None))[kept]
        return ExampleColumns(_compact(columns), self.files)

    @property
    def has_only_texts(self) -> bool:
        """Whether the examples have no fields other than ``TEXTS``."""
        return MORE not in self.columns

    def texts(self, name: str) -> Iterator[str | None]:
        """Yields the values of one of ``TEXTS``."""
        for start in range(0, len(self), AT_ONCE):
            yield from self._texts(name, range(len(self))[start : start + AT_ONCE])

    def __len__(self) -> int:
        return len(self.columns["file"])

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return self._read(range(*index.indices(len(self))))
        index = range(len(self))[index]  # resolves negative indices; IndexError ends an iteration
        return self._read(range(index, index + 1))[0]

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    @without_collection()
    def _read(self, indices: range) -> list[Example]:
        if indices.step != 1:
            return [self[i] for i in indices]
        examples = []
        files, lines = (self.columns[name][indices.start : indices.stop].tolist() for name in ("file", "line"))
        for file, line, *texts in zip(files, lines, *(self._texts(x, indices) for x in self._names), strict=True):
            values: dict[str, Any] = dict(zip(self._names, texts, strict=True))
            more, row = values.pop(MORE, None), values.pop(ROW, None)
            values |= {} if more is None else _read_others(json.loads(more))
            place = None if file < 0 else (self.files[file], line if row is None else row)
            examples.append(Example(**values, place=place))
        return examples

    def _texts(self, name: str, indices: range) -> list[str | None]:
        if name not in self.columns:
            return [None] * len(indices)
        ends = self.columns[f"{name}_ends"]
        begin = int(ends[indices.start - 1]) if indices.start else 0
        stops = (ends[indices.start : indices.stop] - begin).tolist()
        whole = self.columns[name][begin : begin + (stops[-1] if stops else 0)].tobytes()
        texts = [whole[a:b].decode() for a, b in zip([0, *stops], stops, strict=False)]
        if f"{name}_known" not in self.columns:
            return [*texts]
        known = self._known(name, slice(indices.start, indices.stop)).tolist()
        return [text if is_known else None for text, is_known in zip(texts, known, strict=True)]

    def _known(self, name: str, part: slice) -> Bool[np.ndarray, " examples"]:
        known = self.columns.get(f"{name}_known")
        return np.ones(len(self), bool)[part] if known is None else known[part]


def texts_of(examples: Iterable[Example], *names: str) -> Iterator[tuple[str | None, ...]]:
    """Yields the values of some of ``TEXTS`` for each example, from columns without making examples."""
    if isinstance(examples, ExampleColumns):
        return zip(*map(examples.texts, names), strict=True)
    return (tuple(getattr(example, name) for name in names) for example in outlines_of(examples))


def _pad(buffer: bytearray, name: str, length: int) -> None:
    """Adds zeros to the lengths of a field that some examples lack."""
    if name not in FIELDS:
        buffer += bytes(length - len(buffer))


def _columns_of(examples: Sequence[Example], files: dict[Path, int]) -> Parts:
    """The columns of some examples, for ``_compact``."""
    texts: dict[str, list[str | None]] = {name: [getattr(x, name) for x in examples] for name in TEXTS}
    return _text_columns({**texts, MORE: [_others_of(x) for x in examples]}, [x.place for x in examples], files)


def _plain_texts(rows: Sequence[tuple[SourceLocation, Row]], reader: Columns) -> dict[str, list[str | None]] | None:
    """The fields of some rows if all are valid texts; None: convert each row, which finds the error, if any."""
    fields = dict(reader.items)
    if "text" not in fields or not {*fields} <= {*TEXTS}:
        return None
    try:
        texts: dict[str, list[Any]] = {name: [row[column] for _, row in rows] for name, column in fields.items()}
        is_plain = not HALF_A_PAIR.search("".join(chain(*texts.values())))
    except (KeyError, TypeError):  # a nested column, or not a text
        return None
    return texts if is_plain and all(texts.get("label", [True])) else None


def _text_columns(
    fields: Mapping[str, Sequence[str | None]], places: Sequence[SourceLocation | None], files: dict[Path, int]
) -> Parts:
    """The columns of fields and places, for ``_compact``.

    Args:
        fields: values by field; others are blank.
        files: numbers of the files; new ones are added.
    """
    columns = Parts()
    rows = [None if place is None or isinstance(place[1], int) else place[1] for place in places]
    for name, texts in {**fields, ROW: rows}.items():
        if any(text is not None for text in texts):
            encoded = [b"" if text is None else text.encode() for text in texts]
            columns[name] = np.frombuffer(b"".join(encoded), np.uint8)
            columns[f"{name}_lengths"] = np.array([len(text) for text in encoded], np.int32)
            columns[f"{name}_known"] = np.array([text is not None for text in texts], bool)
    numbers = [-1 if place is None else files.setdefault(place[0], len(files)) for place in places]
    lines = [-1 if place is None or isinstance(place[1], str) else place[1] for place in places]
    return {**columns, "file": np.array(numbers, np.int32), "line": np.array(lines, np.int64)}


def _compact(columns: Arrays) -> Arrays:
    """Replaces the lengths of texts by their ends, and leaves out what ``Arrays`` leaves out."""
    found = {"file": columns["file"], "line": columns["line"]}
    for name in FIELDS:
        known = columns.get(f"{name}_known")
        if known is not None and known.any():
            found |= {name: columns[name], f"{name}_ends": np.cumsum(columns[f"{name}_lengths"])}
            found |= {} if known.all() else {f"{name}_known": known}
    return found


def _others_of(example: Example) -> str | None:
    """The fields without a separate column, as JSON; None: the example has none."""
    values = {name: value for name in OTHERS if (value := getattr(example, name)) is not None}
    if example.answers is not None:
        values["answers"] = [[answer.text, answer.start] for answer in example.answers]
    if example.messages is not None:
        values["messages"] = [[message.role, message.content] for message in example.messages]
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) if values else None


def _read_others(values: dict[str, Any]) -> dict[str, Any]:
    """Inverse of ``_others_of``."""
    for name in ("words", "tags"):
        if name in values:
            values[name] = tuple(values[name])
    if "answers" in values:
        values["answers"] = tuple(AnswerSpan(text, start) for text, start in values["answers"])
    if "messages" in values:
        values["messages"] = tuple(Message(role, content) for role, content in values["messages"])
    return values
