"""A synthetic task of learning from examples in the prompt.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example


@dataclass(frozen=True, kw_only=True)
class Mappings(SyntheticCorpus):
    """x1 y1 x2 y2 ... xk yk, and then each of these x once more, in any order: ``target`` and their ``tags`` are their
    y. Each text has its own one-to-one mapping of the words x0, x1, ... to y0, y1, ... (Few-shot learning in the
    prompt, as in Chan et al. 2022 and Raventos et al. 2023.)

    Training and validation use the same mappings, and the test other ones, a fifth of all, that training never has. So
    the validation score tells how well mappings are known, and the test score how well they are learned from the
    prompt. Difficulty: ``shots``, the number k of pairs.

    Attributes:
        symbols: number of words x, and of words y.
        mappings: number of mappings in training; null: all but those of the test.
        min_shots: minimum number of pairs.
        max_shots: maximum number of pairs in training and validation.
        test_max_shots: maximum number of pairs in the test.

    Raises:
        ValueError: an empty range, or an impossible number of symbols or mappings.
    """

    columns = ("text", "target", "words", "tags")
    least_sizes = (("shots", 1),)

    symbols: int
    mappings: int | None
    min_shots: int
    max_shots: int
    test_max_shots: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbols < 5:  # of few mappings, a hash may leave none to a split
            raise ValueError(f"data.symbols={self.symbols}: expected at least 5")
        most = math.factorial(self.symbols) // 2
        if self.mappings is not None and not 1 <= self.mappings <= most:
            raise ValueError(f"data.mappings={self.mappings}: expected 1 to {most:,}, or null")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(tag_labels=tuple(f"y{number}" for number in range(self.symbols)))

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of guessing among the y that are as frequent as x: the best without the order of the words."""
        chances = []
        for example in examples:
            pairs = example.text.split()[: 2 * (example.difficulty or {})["shots"]]
            counts = Counter(pairs[1::2])
            alike = Counter(counts.values())
            chances += [1 / alike[count] for count in counts.values()]
        return {"accuracy": sum(chances) / len(chances)} if task == "tagging" else {}

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the number of pairs, and a mapping: the y of each x."""
        (shots,) = super().choose_sizes(generator, is_test=is_test)
        if is_test or self.mappings is None:
            return shots, *self._draw_mapping(generator, is_new=is_test)
        return shots, *generator.choice(self._trained)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws pairs with replacement, and the order of the words to map."""
        shots, *mapping = sizes
        xs = generator.choices(range(self.symbols), k=shots)
        asked = generator.sample(sorted(set(xs)), len(set(xs)))
        pairs = [word for x in xs for word in (f"x{x}", f"y{mapping[x]}")]
        words, ys = (*pairs, *(f"x{x}" for x in asked)), tuple(f"y{mapping[x]}" for x in asked)
        tags = (None,) * len(pairs) + ys
        return Example(" ".join(words), target=" ".join(ys), words=words, tags=tags, difficulty={"shots": shots})

    @cached_property
    def _trained(self) -> list[tuple[int, ...]]:
        """The mappings of training, if their number is given."""
        generator, drawn = random.Random(f"{self.seed} mappings"), dict[tuple[int, ...], None]()
        while len(drawn) < (self.mappings or 0):
            drawn[self._draw_mapping(generator, is_new=False)] = None
        return [*drawn]

    def _draw_mapping(self, generator: random.Random, *, is_new: bool) -> tuple[int, ...]:
        """Draws a mapping of the test (``is_new``) or of training; a hash decides where it belongs."""
        while True:
            mapping = tuple(generator.sample(range(self.symbols), self.symbols))
            if (crc32(f"{self.seed} {mapping}".encode()) % 5 == 0) == is_new:
                return mapping
