"""The base of synthetic diagnostic tasks: random examples whose best possible score is 1."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.example import Example, without_collection
from triptych.data.splits import Splits

MOST_DRAWS = 300
"""Draws per example. The probability that none of them is in a split with a tenth of the texts is 10^-13."""

METRICS = {"translation": "exact_match", "classification": "accuracy", "tagging": "accuracy"}
"""Fraction of correct answers, by task."""


@dataclass(frozen=True, kw_only=True)
class SyntheticCorpus(ABC):
    """A corpus of space-separated words, whose answers follow from the words alone. The best possible score is 1 for
    every architecture. A tag follows from the words up to its own, so a causal model can predict it, except in
    ``Reverse``, ``Sort`` and ``Senses``.

    Each example has a size, such as its length, uniform in its range, and a random text of this size. A hash of the
    text assigns it to a split (80 %, 10 %, 10 %), so no text is in two splits. If ``MOST_DRAWS`` draws of a size find
    no text of a split, because so few exist, a text of another split is used. A text may occur several times within a
    split.

    The sizes that ``least_sizes`` names make examples harder: each is uniform from ``data.min_NAME`` to
    ``data.max_NAME`` in training and validation, and to ``data.test_max_NAME`` in the test, where values above
    ``data.max_NAME`` measure generalization.

    Attributes:
        columns: see ``Corpus``.
        is_made: see ``Corpus``.
        least_sizes: NAME and the smallest allowed value of ``data.min_NAME``, for each size.
        num_train: number of training examples.
        num_validation: number of validation examples, with the sizes of training.
        num_test: number of test examples, which may also have larger sizes.
        seed: seed that draws the examples and assigns the texts.

    Raises:
        ValueError: a split without examples, an empty range of a size, or a test range that does not include the
            training range.
    """

    columns: ClassVar[tuple[str, ...]]
    is_made: ClassVar[bool] = True
    least_sizes: ClassVar[tuple[tuple[str, int], ...]]

    num_train: int
    num_validation: int
    num_test: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("num_train", "num_validation", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected at least 1")
        for name, least in self.least_sizes:
            low, high, test_high = (getattr(self, f"{end}_{name}") for end in ("min", "max", "test_max"))
            if low < least:
                raise ValueError(f"data.min_{name}={low}: expected at least {least}")
            if high < low:
                raise ValueError(f"data.max_{name}={high}: expected at least data.min_{name}={low}")
            if test_high < high:
                raise ValueError(f"data.test_max_{name}={test_high}: expected at least data.max_{name}={high}")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo()

    def check_fits_length(self, name: str, words: int, share: str) -> None:
        """Checks that the longest texts have room for the largest value of a size, which takes ``words`` words each."""
        for end in ("max", "test_max"):
            value, length = getattr(self, f"{end}_{name}"), getattr(self, f"{end}_length")
            if words * value > length:
                raise ValueError(
                    f"data.{end}_{name}={value}: expected at most {length // words}, {share} of data.{end}_length"
                )

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the sizes of an example, in the order of ``least_sizes``."""
        end = "test_max" if is_test else "max"
        ranges = ((getattr(self, f"min_{name}"), getattr(self, f"{end}_{name}")) for name, _ in self.least_sizes)
        return tuple(generator.randint(low, high) for low, high in ranges)

    @abstractmethod
    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws an example of these sizes; its ``difficulty`` contains the actual values."""

    @without_collection()
    def splits(self) -> Splits:
        """Draws the examples. They are the same in every process, and each split is independent of the sizes of the
        others."""
        sizes = {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}
        return Splits(**{split: self._draw_split(split, size) for split, size in sizes.items()})

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Returns the best possible score: 1 for the fraction of correct answers."""
        return {METRICS[task]: 1.0} if task in METRICS else {}

    def _draw_split(self, split: str, count: int) -> list[Example]:
        generator = random.Random(f"{self.seed} {split}")  # string seeds use SHA-512, not PYTHONHASHSEED
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
    """Checks that a vocabulary has at least ``least`` words."""
    if vocabulary < least:
        raise ValueError(f"data.vocabulary={vocabulary}: expected at least {least} ({of})")
