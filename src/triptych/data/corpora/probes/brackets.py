"""A probe of nesting: brackets of several kinds."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.corpora.probes.probe import Axis, Probe
from triptych.data.example import Example

NOTHING = "-"
"""The tag where no bracket is open."""


@dataclass(frozen=True, kw_only=True)
class Brackets(Probe):
    """Brackets of k kinds, (0 0), (1 1), and so on: ``tags`` says at each which one would have to close now, ``label``
    whether the text is balanced. (The language is Dyck-k of bounded depth: Hewitt et al. 2020, RNNs can generate
    bounded hierarchical languages with optimal memory; Yao et al. 2021, Self-Attention Networks Can Process Bounded
    Hierarchical Languages.)

    A text has a length and a depth that it does not exceed. Where neither says what comes next, a bracket opens or
    closes with probability one half; each kind is as probable as the others. In half of the texts one bracket becomes
    one of another kind (of one kind alone: a bracket is turned round), so that they are not balanced. Tags go on there
    as if it had been the right one. Difficulty: ``length``, and ``depth``, the most that are open at once.

    Attributes:
        kinds: how many kinds there are.
        min_length: brackets of a text, at least; lengths are even.
        max_length: at most, in training and validation.
        test_max_length: at most, in the test.
        min_depth: the least depth that a text may have as its limit.
        max_depth: at most, in training and validation.
        test_max_depth: at most, in the test.

    Raises:
        ValueError: a range that is empty, a length that is odd, a depth that no text can have, or no kinds.
    """

    columns = ("text", "label", "words", "tags")

    kinds: int
    min_length: int
    max_length: int
    test_max_length: int
    min_depth: int
    max_depth: int
    test_max_depth: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds < 1:
            raise ValueError(f"data.kinds={self.kinds}: expected at least 1")
        _ = self._length, self._depth
        for name in ("min_length", "max_length", "test_max_length"):
            if getattr(self, name) % 2:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected an even number, as brackets are paired")
        for name in ("", "test_"):
            length, depth = getattr(self, f"{name}max_length"), getattr(self, f"{name}max_depth")
            if 2 * depth > length:
                raise ValueError(
                    f"data.{name}max_depth={depth}: expected at most {length // 2}, half of data.{name}max_length"
                )

    @property
    def _length(self) -> Axis:
        return Axis("length", self.min_length, self.max_length, self.test_max_length, least=2)

    @property
    def _depth(self) -> Axis:
        return Axis("depth", self.min_depth, self.max_depth, self.test_max_depth)

    @property
    def facts(self) -> CorpusFacts:
        """Whether a text is balanced; which bracket would have to close."""
        closing = tuple(f"{kind})" for kind in range(self.kinds))
        return CorpusFacts(labels=("broken", "balanced"), tag_labels=(NOTHING, *closing))

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The length and the largest depth."""
        length = self._length.draw(generator, is_test=is_test)
        return length + length % 2, self._depth.draw(generator, is_test=is_test)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Brackets, their tags, and whether they are balanced."""
        length, limit = sizes
        brackets: list[tuple[bool, int]] = []  # whether it opens, and its kind
        open_kinds: list[int] = []
        deepest = 0
        for left in range(length, 0, -1):
            depth = len(open_kinds)
            if depth == 0 or (depth < min(limit, left) and generator.random() < 0.5):
                open_kinds.append(generator.randrange(self.kinds))
                brackets.append((True, open_kinds[-1]))
                deepest = max(deepest, depth + 1)
            else:
                brackets.append((False, open_kinds.pop()))
        is_balanced = generator.random() < 0.5
        if not is_balanced:
            place = generator.randrange(length)
            opens, kind = brackets[place]
            others = [other for other in range(self.kinds) if other != kind]
            brackets[place] = (opens, generator.choice(others)) if others else (not opens, kind)
        words = tuple(f"({kind}" if opens else f"{kind})" for opens, kind in brackets)
        return Example(
            " ".join(words),
            label=self.facts.labels[is_balanced],
            words=words,
            tags=_tag(brackets),
            difficulty={"length": length, "depth": deepest},
        )


def _tag(brackets: Sequence[tuple[bool, int]]) -> tuple[str, ...]:
    """The bracket that closes the innermost open one; what closes, closes it whatever its kind, and nothing if none is
    open."""
    open_kinds: list[int] = []
    tags = []
    for opens, kind in brackets:
        if opens:
            open_kinds.append(kind)
        elif open_kinds:
            open_kinds.pop()
        tags.append(f"{open_kinds[-1]})" if open_kinds else NOTHING)
    return tuple(tags)
