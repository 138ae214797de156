"""Synthetic tasks on bits: parity and majority.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from abc import abstractmethod
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example


@dataclass(frozen=True, kw_only=True)
class Bits(SyntheticCorpus):
    """Bits, drawn uniformly and independently. ``tags`` contains the class of the bits up to each one, ``label`` that
    of all bits. Difficulty: ``length``. (Hahn 2020, Theoretical Limitations of Self-Attention; Chiang and Cholak 2022,
    Overcoming a Theoretical Limitation of Self-Attention.)

    Attributes:
        classes: class names.
        min_length: minimum number of bits in a text.
        max_length: maximum number of bits in training and validation.
        test_max_length: maximum number of bits in the test.

    Raises:
        ValueError: an empty range.
    """

    columns = ("text", "label", "words", "tags")
    least_sizes = (("length", 1),)
    classes: ClassVar[tuple[str, ...]]

    min_length: int
    max_length: int
    test_max_length: int

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(labels=self.classes, tag_labels=self.classes)

    @abstractmethod
    def classify(self, ones: int, zeros: int) -> str:
        """Returns the class of these numbers of ones and zeros."""

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        (length,) = sizes
        words = tuple(generator.choices("01", k=length))
        ones = accumulate(map(int, words))
        tags = tuple(self.classify(count, seen - count) for seen, count in enumerate(ones, 1))
        return Example(" ".join(words), label=tags[-1], words=words, tags=tags, difficulty={"length": length})


class Parity(Bits):
    """Whether the number of ones is even or odd."""

    classes = ("even", "odd")

    def classify(self, ones: int, zeros: int) -> str:
        return self.classes[ones % 2]


class Majority(Bits):
    """Whether there are more ones, more zeros, or the same number of both."""

    classes = ("ones", "zeros", "tie")

    def classify(self, ones: int, zeros: int) -> str:
        return "tie" if ones == zeros else "ones" if ones > zeros else "zeros"
