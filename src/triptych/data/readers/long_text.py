"""Texts that are read as streams, however long they are."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from triptych.data.example import Example
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import read_parts
from triptych.data.readers.tables import table_rows
from triptych.storage.cache import remembered

PIECE = 2**14
"""The most characters of a piece of running text."""
AFTER_LINE = re.compile(r".*\S\n(?=\S)", re.DOTALL)
BEFORE_BLANK = re.compile(r".*\S(?= \S)", re.DOTALL)


def pieces_of(parts: Iterable[str]) -> Iterator[str]:
    """A text cut into pieces of at most ``PIECE`` characters, wherever it comes cut already.

    A piece ends after a line feed between two characters that are not white space; if there is none, before a blank
    between such characters; if there is none, anywhere. At the first two our byte-pair encoding never merges, so the
    tokens of the pieces are those of the text; only a word of more than ``PIECE`` characters can differ. (Bytes and
    characters can be cut anywhere. Of others' tokenizers, one that puts a blank before a text puts it before a piece.)
    """
    text = ""
    for part in parts:
        text += part
        while len(text) > PIECE:
            cut = AFTER_LINE.match(text, 0, PIECE + 1) or BEFORE_BLANK.match(text, 0, PIECE + 1)
            end = PIECE if cut is None else cut.end()
            yield text[:end]
            text = text[end:]
    if text:
        yield text


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a corpus: some characters of running text, or some rows of tables of documents.

    Attributes:
        files: one after the other.
        column: of the documents, in tables; None: the files are running text.
        start: the first character or document that belongs to it.
        stop: the one after the last.
        weight: its share in a mixture, in any unit.
    """

    files: tuple[Path, ...]
    column: str | None
    start: int
    stop: int
    weight: float = 1.0

    def __len__(self) -> int:
        """Characters, or documents."""
        return self.stop - self.start

    @property
    def unit(self) -> str:
        """What is counted."""
        return "characters" if self.column is None else "documents"

    @property
    def sha256(self) -> str:
        """Equal for equal content and the same part of it."""
        contents = [contents_of(path, self.column)["sha256"] for path in self.files]
        return hashlib.sha256(json.dumps([contents, self.column, self.start, self.stop]).encode()).hexdigest()

    def pieces(self) -> Iterator[str]:
        """Its documents, or the pieces of its running text."""
        if self.column is not None:
            return islice(
                chain.from_iterable(documents(path, self.column) for path in self.files), self.start, self.stop
            )
        return pieces_of(self._characters())

    def _characters(self) -> Iterator[str]:
        place = 0
        for path in self.files:
            size = contents_of(path, None)["size"]
            if place < self.stop and place + size > self.start:
                for part in read_parts(path):
                    yield part[max(self.start - place, 0) : max(self.stop - place, 0)]
                    place += len(part)
                    if place >= self.stop:
                        return
            else:
                place += size


class LongText:
    """A split that is never in memory as a whole. Iteration reads it anew, piece by piece.

    Args:
        sources: its parts; in a mixture, those with a weight each.
    """

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[Example]:
        """Its pieces, those of one source after the other, whatever their weights."""
        return (Example(piece) for source in self.sources for piece in source.pieces())

    def __str__(self) -> str:
        """How much it is."""
        sizes = {unit: sum(len(s) for s in self.sources if s.unit == unit) for unit in ("characters", "documents")}
        return " and ".join(f"{size:,} {unit}" for unit, size in sizes.items() if size) or "nothing"

    @property
    def sha256(self) -> str:
        """Equal for equal sources with equal weights."""
        parts = [(source.sha256, source.weight) for source in self.sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def contents_of(path: Path, column: str | None) -> dict[str, Any]:
    """The SHA-256 of a file and its size, in documents if it is a table of them, else in characters; both are
    remembered for as long as the file does not change.

    Args:
        column: of the documents; None: it is running text.

    Raises:
        ValueError: a file that cannot be read, with the line.
    """

    def measure() -> dict[str, Any]:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if column is None:
            size = sum(len(part) for part in read_parts(path))
        else:
            size = sum(1 for _ in documents(path, column))
        return {"sha256": sha256, "size": size}

    return remembered(path, f"size in {column}", measure)


def documents(path: Path, column: str) -> Iterator[str]:
    """The texts in a column of a table, row by row.

    Args:
        path: of a table; see ``triptych.data.readers.tables``.

    Raises:
        ValueError: a row that cannot be read, or no such column.
    """
    columns = Columns(text=column)
    return (columns.example(row, place).text for place, row in table_rows(path, columns))
