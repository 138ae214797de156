"""Texts of any length, read as streams."""

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
from triptych.storage.cache import get_file_property

PIECE = 2**14
"""The maximum number of characters in a piece of plain text."""
AFTER_LINE = re.compile(r".*\S\n(?=\S)", re.DOTALL)
BEFORE_BLANK = re.compile(r".*\S(?= \S)", re.DOTALL)


def pieces_of(parts: Iterable[str]) -> Iterator[str]:
    """Splits a text, given in parts, into pieces of at most ``PIECE`` characters.

    A piece ends after a line feed between two non-whitespace characters, else before a space between two such
    characters, else anywhere. Triptych's byte-pair encoding never merges across the first two. So the tokens of the
    pieces equal those of the text, except in words of more than ``PIECE`` characters. Byte and character tokenizers
    allow any split. A pretrained tokenizer that adds a space before a text adds one before each piece.
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
    """A part of a corpus: a range of characters of plain text, or of rows in tables of documents.

    Attributes:
        files: files in reading order.
        column: column of the documents in tables; None: the files are plain text.
        start: first character or document.
        stop: end of the range (exclusive).
        weight: relative weight in a mixture.
    """

    files: tuple[Path, ...]
    column: str | None
    start: int
    stop: int
    weight: float = 1.0

    def __len__(self) -> int:
        """Number of characters or documents."""
        return self.stop - self.start

    @property
    def unit(self) -> str:
        """Unit of the length."""
        return "characters" if self.column is None else "documents"

    @property
    def sha256(self) -> str:
        """Equal for equal content and range."""
        contents = [contents_of(path, self.column)["sha256"] for path in self.files]
        return hashlib.sha256(json.dumps([contents, self.column, self.start, self.stop]).encode()).hexdigest()

    def pieces(self) -> Iterator[str]:
        """Yields the documents, or pieces of plain text."""
        if self.column is not None:
            texts = chain.from_iterable(documents(path, self.column) for path in self.files)
            return islice(texts, self.start, self.stop)
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
    """A split that is never completely in memory. Each iteration reads it again.

    Args:
        sources: parts of the split; in a mixture, each with a weight.
    """

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[Example]:
        """Yields the pieces of one source after the other, regardless of the weights."""
        return (Example(piece) for source in self.sources for piece in source.pieces())

    def __str__(self) -> str:
        sizes = {unit: sum(len(s) for s in self.sources if s.unit == unit) for unit in ("characters", "documents")}
        return " and ".join(f"{size:,} {unit}" for unit, size in sizes.items() if size) or "nothing"

    @property
    def sha256(self) -> str:
        """Equal for equal sources and weights."""
        parts = [(source.sha256, source.weight) for source in self.sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def contents_of(path: Path, column: str | None) -> dict[str, Any]:
    """Returns the SHA-256 and the size of a file, cached until the file changes. The size is in documents for tables
    and in characters for plain text.

    Args:
        path: the file.
        column: column of the documents; None: plain text.

    Raises:
        ValueError: a file that cannot be read, with the line.
    """

    def measure() -> dict[str, Any]:
        if column is None:
            size = sum(len(part) for part in read_parts(path))
        else:
            size = sum(1 for _ in documents(path, column))
        return {"sha256": file_sha256(path), "size": size}

    return get_file_property(path, f"size in {column}", measure)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of the bytes of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def documents(path: Path, column: str) -> Iterator[str]:
    """Yields the texts in a column of a table."""
    columns = Columns(text=column)
    return (columns.example(row, place).text for place, row in table_rows(path, columns))
