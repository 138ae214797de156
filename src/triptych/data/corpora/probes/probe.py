"""What all probes share: how examples are drawn, and that the best reachable score is 1."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.example import Example, without_collection
from triptych.data.splits import Splits

MOST_DRAWS = 300
"""Draws for one example: that none of so many is of a part with a tenth of the texts happens once in 10^13 times."""

METRICS = {"translation": "exact_match", "classification": "accuracy", "tagging": "accuracy"}
"""By task: the share of right answers."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A size that makes examples harder; ``data.min_NAME``, ``data.max_NAME`` and ``data.test_max_NAME``.

    Attributes:
        name: in the messages.
        low: the least.
        high: the most in training and validation.
        test_high: the most in the test: what is beyond ``high`` asks for generalisation.
        least: that ``low`` may be.

    Raises:
        ValueError: a range that is empty, or a test that does not cover what is trained.
    """

    name: str
    low: int
    high: int
    test_high: int
    least: int = 1

    def __post_init__(self) -> None:
        if self.low < self.least:
            raise ValueError(f"data.min_{self.name}={self.low}: expected at least {self.least}")
        if self.high < self.low:
            raise ValueError(f"data.max_{self.name}={self.high}: expected at least data.min_{self.name}={self.low}")
        if self.test_high < self.high:
            raise ValueError(
                f"data.test_max_{self.name}={self.test_high}: expected at least data.max_{self.name}={self.high}"
            )

    def draw(self, generator: random.Random, *, is_test: bool) -> int:
        """Any size, each as probable as the others."""
        return generator.randint(self.low, self.test_high if is_test else self.high)


@dataclass(frozen=True, kw_only=True)
class Probe(ABC):
    """A corpus of words with blanks between them, whose answers follow from the words alone: the best reachable score
    is 1, whatever the architecture. (A tag follows from the words up to its own, so a causal stack can know it; but for
    those of ``Reverse`` and ``Sort``.)

    An example has a size (its length, for instance), uniform in its range, and a text of this size, drawn at random.
    Texts are dealt to the splits, 80 %, 10 % and 10 % of all, by a function of the text, so none is in two of them;
    where ``MOST_DRAWS`` draws of a size find no text of a split, for there are so few, it has one of another split.
    Within a split a text may come up again.

    Attributes:
        columns: see ``Corpus``.
        is_made: likewise.
        num_train: training examples.
        num_validation: of the sizes of the training.
        num_test: of larger sizes, too.
        seed: draws the examples and deals the texts.

    Raises:
        ValueError: a split without examples.
    """

    columns: ClassVar[tuple[str, ...]]
    is_made: ClassVar[bool] = True

    num_train: int
    num_validation: int
    num_test: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("num_train", "num_validation", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected at least 1")

    @property
    def facts(self) -> CorpusFacts:
        """The classes, of texts and of words."""
        return CorpusFacts()

    @abstractmethod
    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The sizes of an example."""

    @abstractmethod
    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """An example of these sizes; its ``difficulty`` says what they came to."""

    @without_collection()
    def splits(self) -> Splits:
        """Draw the examples.

        Returns:
            the three splits; the same in every process, each independent of the size of the others.
        """
        return Splits(
            train=self._draw_split("train", self.num_train),
            validation=self._draw_split("validation", self.num_validation),
            test=self._draw_split("test", self.num_test),
        )

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """The best values reachable: 1 of the share of right answers.

        Args:
            architecture: does not matter.
            examples: do not matter.
        """
        return {METRICS[task]: 1.0} if task in METRICS else {}

    def _draw_split(self, split: str, count: int) -> list[Example]:
        generator = random.Random(f"{self.seed} {split}")  # a string seeds through SHA-512, whatever PYTHONHASHSEED
        examples = []
        for _ in range(count):
            sizes = self.choose_sizes(generator, is_test=split == "test")
            for _ in range(MOST_DRAWS):
                example = self.draw(generator, sizes)
                if self._split_of(example.text) == split:
                    break
            examples.append(example)
        return examples

    def _split_of(self, text: str) -> str:
        return {0: "validation", 1: "test"}.get(crc32(f"{self.seed} {text}".encode()) % 10, "train")


def check_vocabulary(vocabulary: int, least: int, of: str) -> None:
    """Refuses a vocabulary that is too small."""
    if vocabulary < least:
        raise ValueError(f"data.vocabulary={vocabulary}: expected at least {least} ({of})")
