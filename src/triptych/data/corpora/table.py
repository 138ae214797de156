"""Corpora that are tables: each example is a row."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.example import Example, Place
from triptych.data.readers.columns import Columns
from triptych.data.readers.tables import Row
from triptych.data.splits import Splits, make_splits

Source = TypeVar("Source")


class RowCorpus(ABC, Generic[Source]):
    """A corpus of rows. The classes, and the tags, are those of the training examples, in order (as numbers, if they
    are).

    Args:
        dir: where the sources are.
        columns: which column holds which field of an example.
        train: source of the training rows; None: only the test is read.
        validation: source of these rows, or a share of the training examples; None: there are none.
        test: source of these rows, or a share of the training examples.
        split_seed: of the draws of the shares.
    """

    columns: tuple[str, ...]

    def __init__(
        self,
        dir: str,
        columns: Columns,
        train: Source | None,
        validation: Source | float | None,
        test: Source | float,
        split_seed: int,
    ) -> None:
        self.dir, self.reader = dir, columns
        self.train, self.validation, self.test, self.split_seed = train, validation, test, split_seed

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

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        """The best reachable values: not known of real text."""
        return {}

    @cached_property
    def _splits(self) -> Splits:
        return make_splits(self._read, self.train, self.validation, self.test, self.split_seed)

    def example(self, row: Row, place: Place) -> Example:
        """What a row says.

        Raises:
            ValueError: a value that does not fit, with its place.
        """
        return self.reader.example(row, place)

    def _read(self, source: Source) -> list[Example]:
        examples = [self.example(row, place) for place, row in self.rows(source)]
        if not examples:
            raise ValueError(f"{Path(self.dir, str(source))}: no rows")
        return examples


def _in_order(names: set[str]) -> tuple[str, ...]:
    ordered = sorted(names)
    with suppress(ValueError):  # of equal numbers, such as 1 and 01, the order of the texts remains
        ordered = sorted(ordered, key=float)
    return tuple(ordered)
