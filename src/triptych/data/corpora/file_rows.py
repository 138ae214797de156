"""Rows with an image or audio file each.

Tested by tests/assembly/test_files_on_demand.py.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from triptych.config import ConfigError, error_prefix
from triptych.data.corpora.row_corpus import RowCorpus
from triptych.data.example import Example, SourceLocation
from triptych.data.file_examples import MOST_BYTES, FileExamples, outline_of
from triptych.data.readers.file_changes import FileChanges
from triptych.data.readers.tables import Row


class FileRows(RowCorpus[str]):
    """Rows with an image or audio file each. All are decoded once, to check them; if they are larger than
    ``MOST_BYTES``, they are decoded again whenever a batch needs them."""

    plural: ClassVar[str]
    """What the files are, in messages."""

    @abstractmethod
    def decode(self, example: Example, row: Row, path: Path) -> tuple[Example, tuple[str, ...]]:
        """Returns an example with its image or audio, and the changes to it.

        Args:
            path: the file, for rows without its content.
        """

    @cached_property
    def _changes(self) -> FileChanges:
        return FileChanges(self.plural)

    def example(self, row: Row, place: SourceLocation) -> Example:
        """Converts a row to an example with its image or audio.

        Raises:
            ValueError: an invalid value or file, with its place.
        """
        example = self.reader.example(row, place)
        path = self.file_of(example)
        with error_prefix(f"{example.where}: "):
            example, done = self.decode(example, row, path)
        self._changes.add(done)
        return example

    def row_reader(self, source: str) -> Callable[[int], Row] | None:
        """Returns a function that reads a row again, given its index; None: the rows are kept in memory."""
        return None

    def collect(self, source: str) -> Sequence[Example]:
        read_again, examples, rows, num_bytes = self.row_reader(source), list[Example](), list[Row](), 0
        for place, row in self.rows(source):
            example = self.example(row, place)
            is_large = num_bytes > MOST_BYTES
            num_bytes += _num_bytes(example)
            examples.append(outline_of(example) if is_large else example)
            if not is_large and num_bytes > MOST_BYTES:
                examples = [*map(outline_of, examples)]
            if read_again is None:
                rows.append(row)
        self._changes.report(source)
        if num_bytes <= MOST_BYTES:
            return examples

        def decode(index: int) -> Example:
            outline = examples[index]
            assert outline.place is not None
            example = self.example(rows[index] if read_again is None else read_again(index), outline.place)
            if repr(example) != repr(outline):
                raise ConfigError(f"{example.where}: {example.text}: the file has changed since the start of the run")
            return example

        return FileExamples(examples, decode)


def _num_bytes(example: Example) -> int:
    """The memory of the image or audio as input of a network: 32-bit pixels, or frames."""
    image, audio = example.image, example.audio
    return (0 if image is None else 4 * len(image.content)) + (0 if audio is None else len(audio.content))
