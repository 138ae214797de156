"""The base of synthetic corpora of digit strings in noise.

Tested by tests/data/corpora/test_drawn_digits.py and tests/data/corpora/test_tone_digits.py.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.example import Example
from triptych.data.splits import Splits


@dataclass(kw_only=True)
class DigitStrings(ABC):
    """A corpus of generated examples. Each split is independent of the sizes of the others.

    Attributes:
        min_digits: minimum number of digits in a string.
        max_digits: maximum number of digits in a string; if it is 1, each digit is a class.
        noise: standard deviation of the noise.
        num_train: number of training examples.
        num_validation: number of validation examples.
        num_test: number of test examples.
        seed: seed of all draws.
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
        """Possible numbers of digits in a string."""
        return range(self.min_digits, self.max_digits + 1)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
        return {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}

    @abstractmethod
    def draw(self, split: str) -> Iterator[Example]:
        """Yields the examples of a split."""

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(labels=tuple("0123456789") if self.counts.stop == 2 else ())

    def splits(self) -> Splits:
        return self._splits

    @cached_property
    def _splits(self) -> Splits:
        return Splits(*([*self.draw(name)] for name in ("train", "validation", "test")))
