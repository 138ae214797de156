"""The synthetic task ListOps: nested operations.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example

DIGITS = tuple("0123456789")
OPERATION_SHARE = 0.25
"""Probability that an argument is an operation (Tay et al. 2021, as in their code)."""

MOST_TREES = 1000
"""Number of attempts to draw an expression of an allowed length."""

OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),  # for an even count, the mean of the middle two, rounded down
    "[SM": lambda values: sum(values) % 10,
}


@dataclass(frozen=True, kw_only=True)
class ListOps(SyntheticCorpus):
    """Nested operations on lists of digits, and their result: [MAX 2 9 [MIN 4 7 ] 0 ] is 9 (Nangia and Bowman 2018).
    The grammar is that of Long Range Arena (Tay et al. 2021): an operation has 2 to ``max_args`` arguments, each an
    operation with probability 1/4, else a digit. Difficulty: ``depth`` and ``length``.

    The depth is drawn first, uniformly. One path of operations has exactly this depth, and the others at most. Long
    Range Arena uses max_args=10, max_depth=10, min_length=500, max_length=2000; expressions below min_depth=6 are
    rarely that long.

    Attributes:
        max_args: maximum number of arguments of an operation.
        min_depth: minimum depth of nested operations.
        max_depth: maximum depth in training and validation.
        test_max_depth: maximum depth in the test.
        min_length: minimum number of words in a text; the brackets of an operation are two.
        max_length: maximum number of words in a text.

    Raises:
        ValueError: an empty range, or lengths that are impossible at these depths.
    """

    columns = ("text", "label")
    least_sizes = (("depth", 1),)
    info = CorpusInfo(labels=DIGITS)

    max_args: int
    min_depth: int
    max_depth: int
    test_max_depth: int
    min_length: int
    max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_args < 2:
            raise ValueError(f"data.max_args={self.max_args}: expected at least 2")
        longest = 1
        for _ in range(self.min_depth):
            longest = 2 + self.max_args * longest
        if longest < self.min_length:
            raise ValueError(
                f"data.min_length={self.min_length}: expected at most {longest}, the longest text of "
                f"data.min_depth={self.min_depth} and data.max_args={self.max_args}"
            )
        if (shortest := 1 + 3 * self.test_max_depth) > self.max_length:
            raise ValueError(
                f"data.max_length={self.max_length}: expected at least {shortest}, the shortest text of "
                f"data.test_max_depth={self.test_max_depth}"
            )

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of the most frequent result of each outermost operation, the first word of a text."""
        results: dict[str, Counter[str | None]] = {}
        for example in examples:
            results.setdefault(example.text.partition(" ")[0], Counter())[example.label] += 1
        hits = sum(max(of_one.values()) for of_one in results.values())
        return {"accuracy": hits / len(examples)} if task == "classification" else {}

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws an expression.

        Raises:
            ValueError: none of many expressions has an allowed length.
        """
        (depth,) = sizes
        for _ in range(MOST_TREES):
            words: list[str] = []
            value = self._draw_operation(generator, depth, words, is_deep=True)
            if self.min_length <= len(words) <= self.max_length:
                difficulty = {"depth": depth, "length": len(words)}
                return Example(" ".join(words), label=str(value), difficulty=difficulty)
        raise ValueError(
            f"data.min_length={self.min_length}, data.max_length={self.max_length}: none of {MOST_TREES:,} texts of "
            f"depth {depth} has such a length; expected other lengths or depths"
        )

    def _draw_operation(self, generator: random.Random, depth: int, words: list[str], *, is_deep: bool) -> int:
        """Appends an operation of at most this depth, or exactly this depth if ``is_deep``; returns its value."""
        name = generator.choice(list(OPERATIONS))
        count = generator.randint(2, self.max_args)
        deep = generator.randrange(count) if is_deep else None
        words.append(name)
        values = [self._draw_argument(generator, depth - 1, words, is_deep=i == deep) for i in range(count)]
        words.append("]")
        return OPERATIONS[name](values)

    def _draw_argument(self, generator: random.Random, depth: int, words: list[str], *, is_deep: bool) -> int:
        """Appends an operation (see ``_draw_operation``) or a digit; returns its value."""
        if depth > 0 and (is_deep or generator.random() < OPERATION_SHARE):
            return self._draw_operation(generator, depth, words, is_deep=is_deep)
        words.append(generator.choice(DIGITS))
        return int(words[-1])
