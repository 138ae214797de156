"""Corpora whose examples are rows of tables.

Tested by tests/data/corpora/test_hub.py and tests/data/corpora/test_conversations.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from triptych.data.corpora.corpus import CorpusInfo, RealCorpus, TextFileCorpus
from triptych.data.example import Example, SourceLocation
from triptych.data.example_columns import ExampleColumns
from triptych.data.file_examples import outlines_of
from triptych.data.readers.columns import Columns
from triptych.data.readers.files import check_files, resolve_file
from triptych.data.readers.long_text import LongText
from triptych.data.readers.tables import Row, table_rows
from triptych.data.splits import Splits, make_splits

Source = TypeVar("Source")


class RowCorpus(RealCorpus, ABC, Generic[Source]):
    """A corpus of rows. Its classes and tags are those of the training examples, sorted (as numbers if they are
    numbers).

    Attributes:
        columns: see ``Corpus``.
        dir: location of the sources.
        train: source of the training rows; None: only the test split is read.
        validation: source of the validation rows, or a fraction of the training examples; None: no validation split.
        test: source of the test rows, or a fraction of the training examples.
        split_seed: seed that draws the fractions.
    """

    columns: tuple[str, ...]
    dir: str
    train: Source | None
    validation: Source | float | None
    test: Source | float
    split_seed: int

    def __post_init__(self) -> None:
        """Checks the settings."""

    @cached_property
    def reader(self) -> Columns:
        """The column of each field: the setting with its name."""
        return Columns(**{field.name: getattr(self, field.name, None) for field in fields(Columns)})

    @abstractmethod
    def rows(self, source: Source) -> Iterator[tuple[SourceLocation, Row]]:
        """Yields the rows of a source, each with its place.

        Raises:
            ValueError: a row that cannot be read, with its place.
        """

    @cached_property
    def info(self) -> CorpusInfo:
        train = self._splits.train
        assert not isinstance(train, LongText)
        labels = train.texts("label") if isinstance(train, ExampleColumns) else (x.label for x in outlines_of(train))
        tags = (tag for x in train for tag in x.tags or ()) if self.reader.tags else ()
        return CorpusInfo(labels=_in_order({*labels}), tag_labels=_in_order({*tags}))

    def splits(self) -> Splits:
        """Returns the examples.

        Raises:
            ValueError: a row that cannot be read, with its place, or no rows.
        """
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def collect(self, source: Source) -> Sequence[Example]:
        """Returns the examples of a source."""
        return ExampleColumns.of_rows(self.rows(source), self.reader)

    def file_of(self, example: Example) -> Path:
        """Returns the file that a row names."""
        return Path(example.text)

    def _read(self, source: Source) -> Sequence[Example]:
        examples = self.collect(source)
        if not examples:
            raise ValueError(f"{Path(self.dir, str(source))}: no rows")
        return examples


@dataclass(kw_only=True)
class TableCorpus(RowCorpus[str], TextFileCorpus):
    """Tables in a folder. The suffix of each file name determines the format.

    Attributes:
        formats: allowed suffixes, without compression; empty: any.
        dir: folder of the tables, and of the files that their rows name.
        train: file name of the training table; None: only the test split is read.
        validation: file name of the validation table, or a fraction of the training examples; None: no validation
            split.
        test: file name of the test table, or a fraction of the training examples.
        split_seed: seed that draws the fractions.

    Raises:
        ValueError: no such table, an unknown format, or fractions that leave no training data.
    """

    formats: ClassVar[Sequence[str]]

    dir: str
    train: str | None
    validation: str | float | None
    test: str | float
    split_seed: int

    def __post_init__(self) -> None:
        check_files(self.dir, self.formats, train=self.train, validation=self.validation, test=self.test)

    def rows(self, source: str) -> Iterator[tuple[SourceLocation, Row]]:
        yield from table_rows(resolve_file(self.dir, "data", source), self.reader)


def _in_order(names: set[str | None]) -> tuple[str, ...]:
    ordered = sorted(name for name in names if name is not None)
    with suppress(ValueError):  # equal numbers, such as 1 and 01, stay sorted as texts
        ordered = sorted(ordered, key=float)
    return tuple(ordered)
