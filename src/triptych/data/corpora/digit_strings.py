"""Strings of digits in noise, made on the spot: what sounds and images of them have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.example import Example
from triptych.data.splits import Splits


@dataclass(kw_only=True)
class DigitStrings(ABC):
    """A corpus whose examples are drawn; each split is independent of the size of the others.

    Attributes:
        min_digits: of a string.
        max_digits: of a string; of single digits each is a class.
        noise: its standard deviation.
        num_train: training examples.
        num_validation: validation examples.
        num_test: test examples.
        seed: of all draws.
    """

    min_digits: int
    max_digits: int
    noise: float
    num_train: int
    num_validation: int
    num_test: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.min_digits <= self.max_digits:
            raise ValueError(f"data.min_digits={self.min_digits}: expected 1 to data.max_digits={self.max_digits}")
        if not 0 < self.noise < math.inf:
            raise ValueError(f"data.noise={self.noise}: expected more than 0")
        for split, size in self.sizes.items():
            if size < 1:
                raise ValueError(f"data.num_{split}={size}: expected at least 1")
        if self.seed < 0:
            raise ValueError(f"data.seed={self.seed}: expected 0 or more")

    @property
    def counts(self) -> range:
        """Of digits, that a string may have."""
        return range(self.min_digits, self.max_digits + 1)

    @property
    def sizes(self) -> dict[str, int]:
        """Examples of each split."""
        return {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}

    @abstractmethod
    def draw(self, split: str) -> Iterator[Example]:
        """The examples of a split, one by one."""

    @property
    def facts(self) -> CorpusFacts:
        """The digits as classes, where each string is one."""
        return CorpusFacts(labels=tuple("0123456789") if self.counts.stop == 2 else ())

    def splits(self) -> Splits:
        """The examples."""
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        return Splits(*([*self.draw(name)] for name in ("train", "validation", "test")))
