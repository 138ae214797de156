"""Synthetic tasks with a sequence of words as answer: copying, reversing, sorting, adding.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus, check_vocabulary
from triptych.data.example import Example


@dataclass(frozen=True, kw_only=True)
class Rewriting(SyntheticCorpus):
    """Words, drawn uniformly and independently, and their transformed sequence, as ``target`` and word by word as
    ``tags``. Difficulty: ``length``.

    Attributes:
        vocabulary: number of words: 0, 1, 2, ...
        min_length: minimum number of words in a text.
        max_length: maximum number of words in training and validation.
        test_max_length: maximum number of words in the test.

    Raises:
        ValueError: an empty range, or fewer than two words.
    """

    columns = ("text", "target", "words", "tags")
    least_sizes = (("length", 1),)

    vocabulary: int
    min_length: int
    max_length: int
    test_max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.vocabulary, 2, "words")

    @property
    def info(self) -> CorpusInfo:
        """The words are the tags."""
        return CorpusInfo(tag_labels=tuple(map(str, range(self.vocabulary))))

    @abstractmethod
    def rewrite(self, numbers: list[int]) -> list[int]:
        """Returns the transformed sequence."""

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        (length,) = sizes
        numbers = generator.choices(range(self.vocabulary), k=length)
        words, tags = (tuple(map(str, found)) for found in (numbers, self.rewrite(numbers)))
        return Example(" ".join(words), target=" ".join(tags), words=words, tags=tags, difficulty={"length": length})

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Like ``SyntheticCorpus.optimum``; unknown if tags depend on words that a causal model has not read yet."""
        is_hidden = task == "tagging" and architecture == "decoder_only" and not isinstance(self, Copy)
        return {} if is_hidden else super().optimum(task, architecture, examples)


class Copy(Rewriting):
    """The same words again."""

    def rewrite(self, numbers: list[int]) -> list[int]:
        return numbers


class Reverse(Rewriting):
    """The words from the last to the first."""

    def rewrite(self, numbers: list[int]) -> list[int]:
        return numbers[::-1]


class Sort(Rewriting):
    """The words as numbers, from the smallest to the largest."""

    def rewrite(self, numbers: list[int]) -> list[int]:
        return sorted(numbers)


@dataclass(frozen=True, kw_only=True)
class Addition(SyntheticCorpus):
    """Two numbers with the same number of digits, and their sum; each digit is a word. Difficulty: ``digits`` of each
    number, and ``carries``, the longest run of digits that carry. (Lee et al. 2024, Teaching Arithmetic to Small
    Transformers, section 3, also write the sum from the lowest to the highest digit.)

    Attributes:
        min_digits: minimum number of digits of a number.
        max_digits: maximum number of digits in training and validation.
        test_max_digits: maximum number of digits in the test.
        lowest_first: whether all three numbers start with their last digit, so that each digit of the sum follows from
            the text before it.

    Raises:
        ValueError: an empty range.
    """

    columns = ("text", "target")
    least_sizes = (("digits", 1),)

    min_digits: int
    max_digits: int
    test_max_digits: int
    lowest_first: bool

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws two numbers without leading zeros."""
        (digits,) = sizes
        first, second = (generator.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits) for _ in range(2))
        text = f"{self._write(first)} + {self._write(second)}"
        difficulty = {"digits": digits, "carries": longest_carry(first, second)}
        return Example(text, target=self._write(first + second), difficulty=difficulty)

    def _write(self, number: int) -> str:
        return " ".join(str(number)[:: -1 if self.lowest_first else 1])


def longest_carry(first: int, second: int) -> int:
    """Returns the maximum number of successive digits that carry when two numbers are added."""
    places = range(1, len(str(max(first, second))) + 1)
    carries = [first % 10**place + second % 10**place >= 10**place for place in places]
    return max((len(list(run)) for carry, run in groupby(carries) if carry), default=0)
