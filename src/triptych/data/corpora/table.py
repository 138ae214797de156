"""Corpora that are tables: each example is a row."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from triptych.data.corpora.corpus import CorpusFacts, RealCorpus
from triptych.data.example import Example, Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import check_files, find
from triptych.data.readers.tables import Row, table_rows
from triptych.data.splits import Splits, make_splits

Source = TypeVar("Source")


class RowCorpus(RealCorpus, ABC, Generic[Source]):
    """A corpus of rows. The classes, and the tags, are those of the training examples, in order (as numbers, if they
    are).

    Attributes:
        columns: see ``Corpus``.
        dir: where the sources are.
        train: source of the training rows; None: only the test is read.
        validation: source of these rows, or a share of the training examples; None: there are none.
        test: source of these rows, or a share of the training examples.
        split_seed: of the draws of the shares.
    """

    columns: tuple[str, ...]
    dir: str
    train: Source | None
    validation: Source | float | None
    test: Source | float
    split_seed: int

    def __post_init__(self) -> None:
        """Checks the settings."""

    @property
    @abstractmethod
    def reader(self) -> Columns:
        """Which column holds which field of an example."""

    @abstractmethod
    def rows(self, source: Source) -> Iterator[tuple[Place, Row]]:
        """The rows of one of the sources, each with its place.

        Raises:
            ValueError: a row that cannot be read, with its place.
        """

    @cached_property
    def facts(self) -> CorpusFacts:
        """The classes and the tags."""
        labels = {example.label for example in self._splits.train if example.label is not None}
        tags = {tag for example in self._splits.train for tag in example.tags or () if tag is not None}
        return CorpusFacts(labels=_in_order(labels), tag_labels=_in_order(tags))

    def splits(self) -> Splits:
        """The examples.

        Raises:
            ValueError: a row that cannot be read, with its place, or no rows.
        """
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def example(self, row: Row, place: Place) -> Example:
        """What a row says.

        Raises:
            ValueError: a value that does not fit, with its place.
        """
        return self.reader.example(row, place)

    def file_of(self, example: Example) -> Path:
        """The file that a row names."""
        return Path(example.text)

    def _read(self, source: Source) -> list[Example]:
        examples = [self.example(row, place) for place, row in self.rows(source)]
        if not examples:
            raise ValueError(f"{Path(self.dir, str(source))}: no rows")
        return examples


@dataclass(kw_only=True)
class TableCorpus(RowCorpus[str]):
    """Tables in a folder. The name of each says what it is.

    Attributes:
        formats: endings that their names may have, packings apart; none: any.
        dir: folder of the tables, and of the files that their rows name.
        train: name of the table of the training examples; None: only the test is read.
        validation: likewise, or a share of the training examples; None: there are none.
        test: likewise, or a share of the training examples.
        split_seed: of the draws of the shares.

    Raises:
        ValueError: no such table, a name of no known format, or shares that leave nothing to train on.
    """

    formats: ClassVar[Sequence[str]]

    dir: str
    train: str | None
    validation: str | float | None
    test: str | float
    split_seed: int

    def __post_init__(self) -> None:
        check_files(self.dir, self.formats, train=self.train, validation=self.validation, test=self.test)

    def rows(self, source: str) -> Iterator[tuple[Place, Row]]:
        yield from table_rows(find(self.dir, "data", source), self.reader)


def _in_order(names: set[str]) -> tuple[str, ...]:
    ordered = sorted(names)
    with suppress(ValueError):  # of equal numbers, such as 1 and 01, the order of the texts remains
        ordered = sorted(ordered, key=float)
    return tuple(ordered)
