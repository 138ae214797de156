"""Strings of digits in noise, made on the spot: what sounds and images of them have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.example import Example
from triptych.data.splits import Splits


class DigitStrings(ABC):
    """A corpus whose examples are drawn; each split is independent of the size of the others.

    Args:
        min_digits: of a string.
        max_digits: of a string; of single digits each is a class.
        noise: its standard deviation.
        num_train: training examples.
        num_validation: validation examples.
        num_test: test examples.
        seed: of all draws.

    Raises:
        ValueError: a number that cannot be.
    """

    def __init__(
        self,
        *,
        min_digits: int,
        max_digits: int,
        noise: float,
        num_train: int,
        num_validation: int,
        num_test: int,
        seed: int,
    ) -> None:
        if not 1 <= min_digits <= max_digits:
            raise ValueError(f"data.min_digits={min_digits}: expected 1 to data.max_digits={max_digits}")
        if not 0 < noise < math.inf:
            raise ValueError(f"data.noise={noise}: expected more than 0")
        sizes = {"train": num_train, "validation": num_validation, "test": num_test}
        for split, size in sizes.items():
            if size < 1:
                raise ValueError(f"data.num_{split}={size}: expected at least 1")
        if seed < 0:
            raise ValueError(f"data.seed={seed}: expected 0 or more")
        self.counts, self.noise, self.sizes, self.seed = range(min_digits, max_digits + 1), noise, sizes, seed

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
