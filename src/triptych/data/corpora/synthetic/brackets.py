"""A synthetic task of nested brackets.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example

NOTHING = "-"
"""The tag where no bracket is open."""


@dataclass(frozen=True, kw_only=True)
class Brackets(SyntheticCorpus):
    """Brackets of k kinds, (0 0), (1 1), and so on. ``tags`` contains, at each position, the bracket that closes the
    innermost open one, ``label`` whether the text is balanced. The language is Dyck-k of bounded depth: Hewitt et al.
    2020, RNNs can generate bounded hierarchical languages with optimal memory; Yao et al. 2021, Self-Attention Networks
    Can Process Bounded Hierarchical Languages.

    Each text has a length and a maximum depth. Where both an opening and a closing bracket are possible, each has
    probability one half; kinds are uniform. To unbalance half of the texts, one bracket is replaced by one of another
    kind; if there is only one kind, the bracket is reversed. After a wrong closing bracket the tags continue as if it
    were correct. Difficulty: ``length``, and ``depth``, the maximum number of open brackets.

    Attributes:
        kinds: number of kinds.
        min_length: minimum number of brackets in a text; lengths are even.
        max_length: maximum number of brackets in training and validation.
        test_max_length: maximum number of brackets in the test.
        min_depth: smallest maximum depth of a text.
        max_depth: largest maximum depth of a text in training and validation.
        test_max_depth: largest maximum depth of a text in the test.

    Raises:
        ValueError: an empty range, an odd length, an impossible depth, or no kinds.
    """

    columns = ("text", "label", "words", "tags")
    least_sizes = (("length", 2), ("depth", 1))

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
        for name in ("min_length", "max_length", "test_max_length"):
            if getattr(self, name) % 2:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected an even number, as brackets are paired")
        self.check_fits_length("depth", 2, "half")

    @property
    def info(self) -> CorpusInfo:
        closing = tuple(f"{kind})" for kind in range(self.kinds))
        return CorpusInfo(labels=("broken", "balanced"), tag_labels=(NOTHING, *closing))

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the length and the maximum depth."""
        length, depth = super().choose_sizes(generator, is_test=is_test)
        return length + length % 2, depth

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws brackets with their tags and label."""
        length, limit = sizes
        brackets: list[tuple[bool, int]] = []  # (is opening, kind)
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
        label, difficulty = self.info.labels[is_balanced], {"length": length, "depth": deepest}
        return Example(" ".join(words), label=label, words=words, tags=_tag(brackets), difficulty=difficulty)


def _tag(brackets: Sequence[tuple[bool, int]]) -> tuple[str, ...]:
    """Returns, at each position, the bracket that closes the innermost open one. A closing bracket of any kind closes
    it; if none is open, it has no effect."""
    open_kinds: list[int] = []
    tags = []
    for opens, kind in brackets:
        if opens:
            open_kinds.append(kind)
        elif open_kinds:
            open_kinds.pop()
        tags.append(f"{open_kinds[-1]})" if open_kinds else NOTHING)
    return tuple(tags)
