"""A probe of nested operations: ListOps."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.corpora.probes.probe import Axis, Probe
from triptych.data.example import Example

DIGITS = tuple("0123456789")
OPERATION_SHARE = 0.25
"""Of the arguments that may be operations themselves (Tay et al. 2021, as in their code)."""

MOST_TREES = 1000
"""Expressions that are drawn for one of the right length."""

OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),  # of an even number the mean of the middle two, rounded down
    "[SM": lambda values: sum(values) % 10,
}


@dataclass(frozen=True, kw_only=True)
class ListOps(Probe):
    """Nested operations on lists of digits, and the digit that they come to: [MAX 2 9 [MIN 4 7 ] 0 ] is 9. (Nangia and
    Bowman 2018. The grammar is that of Long Range Arena, Tay et al. 2021: an operation has 2 to ``max_args`` arguments,
    each of them an operation again with probability 1/4, else a digit.) Difficulty: ``depth`` and ``length``.

    The depth is drawn first, uniformly, and one argument of each operation on the way leads to it; the others are as
    deep as they happen to be, and no deeper. Long Range Arena's size is max_args=10, max_depth=10, min_length=500,
    max_length=2000; what is less deep than min_depth=6 is hardly ever so long.

    Attributes:
        max_args: arguments of an operation, at most.
        min_depth: of operations within operations, at least.
        max_depth: at most, in training and validation.
        test_max_depth: at most, in the test.
        min_length: words of a text, at least; an operation has two.
        max_length: at most.

    Raises:
        ValueError: a range that is empty, or lengths that no text of these depths can have.
    """

    columns = ("text", "label")

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
        depth = self._depth
        longest = 1
        for _ in range(depth.low):
            longest = 2 + self.max_args * longest
        if longest < self.min_length:
            raise ValueError(
                f"data.min_length={self.min_length}: expected at most {longest}, the longest text of "
                f"data.min_depth={depth.low} and data.max_args={self.max_args}"
            )
        if (shortest := 1 + 3 * depth.test_high) > self.max_length:
            raise ValueError(
                f"data.max_length={self.max_length}: expected at least {shortest}, the shortest text of "
                f"data.test_max_depth={depth.test_high}"
            )

    @property
    def _depth(self) -> Axis:
        return Axis("depth", self.min_depth, self.max_depth, self.test_max_depth)

    @property
    def facts(self) -> CorpusFacts:
        """The digits."""
        return CorpusFacts(labels=DIGITS)

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The depth."""
        return (self._depth.draw(generator, is_test=is_test),)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """An expression and its value.

        Raises:
            ValueError: none of many expressions has a length that is allowed.
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
            f"depth {depth} has such a length; expected lengths or depths that fit each other better"
        )

    def _draw_operation(self, generator: random.Random, depth: int, words: list[str], *, is_deep: bool) -> int:
        """Appends an operation of at most this depth, or, where it is to be deep, of exactly this depth; its value."""
        name = generator.choice(list(OPERATIONS))
        count = generator.randint(2, self.max_args)
        deep = generator.randrange(count) if is_deep else None
        words.append(name)
        values = [self._draw_argument(generator, depth - 1, words, is_deep=i == deep) for i in range(count)]
        words.append("]")
        return OPERATIONS[name](values)

    def _draw_argument(self, generator: random.Random, depth: int, words: list[str], *, is_deep: bool) -> int:
        """Appends an operation, as above, or a digit; its value."""
        if depth > 0 and (is_deep or generator.random() < OPERATION_SHARE):
            return self._draw_operation(generator, depth, words, is_deep=is_deep)
        words.append(generator.choice(DIGITS))
        return int(words[-1])
