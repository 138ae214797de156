"""Probes whose answer is a sequence of words: copying, reversing, sorting, adding."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.corpora.probes.probe import Axis, Probe, check_vocabulary
from triptych.data.example import Example


@dataclass(frozen=True, kw_only=True)
class Rewriting(Probe):
    """Words, drawn uniformly and independently, and what becomes of them: ``target``, and word by word ``tags``.
    Difficulty: ``length``.

    Attributes:
        vocabulary: how many words there are: 0, 1, 2, ...
        min_length: words of a text, at least.
        max_length: at most, in training and validation.
        test_max_length: at most, in the test.

    Raises:
        ValueError: a range that is empty, or fewer than two words.
    """

    columns = ("text", "target", "words", "tags")

    vocabulary: int
    min_length: int
    max_length: int
    test_max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.vocabulary, 2, "words")
        _ = self._length

    @property
    def _length(self) -> Axis:
        return Axis("length", self.min_length, self.max_length, self.test_max_length)

    @property
    def facts(self) -> CorpusFacts:
        """The words, which are the tags."""
        return CorpusFacts(tag_labels=tuple(map(str, range(self.vocabulary))))

    @abstractmethod
    def rewrite(self, numbers: list[int]) -> list[int]:
        """The answer."""

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The length."""
        return (self._length.draw(generator, is_test=is_test),)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Words and their answer."""
        (length,) = sizes
        numbers = generator.choices(range(self.vocabulary), k=length)
        words, tags = (tuple(map(str, found)) for found in (numbers, self.rewrite(numbers)))
        return Example(" ".join(words), target=" ".join(tags), words=words, tags=tags, difficulty={"length": length})

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """See ``Probe``; not known of tags that follow from words that a causal stack has not seen."""
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
class Addition(Probe):
    """Two numbers with as many digits, and their sum; a digit is a word. Difficulty: ``digits`` of each number, and
    ``carries``, the longest run of digits that carry. (Lee et al. 2024, Teaching Arithmetic to Small Transformers,
    section 3, write the sum's digits from the lowest to the highest, too.)

    Attributes:
        min_digits: of a number, at least.
        max_digits: at most, in training and validation.
        test_max_digits: at most, in the test.
        lowest_first: whether all three numbers begin with their last digit: then each digit of the sum follows from
            what was read and written before it.

    Raises:
        ValueError: a range that is empty.
    """

    columns = ("text", "target")

    min_digits: int
    max_digits: int
    test_max_digits: int
    lowest_first: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._digits

    @property
    def _digits(self) -> Axis:
        return Axis("digits", self.min_digits, self.max_digits, self.test_max_digits)

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The number of digits."""
        return (self._digits.draw(generator, is_test=is_test),)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Two numbers without leading zeros, and their sum."""
        (digits,) = sizes
        first, second = (generator.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits) for _ in range(2))
        return Example(
            f"{self._write(first)} + {self._write(second)}",
            target=self._write(first + second),
            difficulty={"digits": digits, "carries": longest_carry(first, second)},
        )

    def _write(self, number: int) -> str:
        return " ".join(str(number)[:: -1 if self.lowest_first else 1])


def longest_carry(first: int, second: int) -> int:
    """How many digits in a row carry, at most, when two numbers are added."""
    places = range(1, len(str(max(first, second))) + 1)
    carries = [first % 10**place + second % 10**place >= 10**place for place in places]
    return max((len(list(run)) for carry, run in groupby(carries) if carry), default=0)
