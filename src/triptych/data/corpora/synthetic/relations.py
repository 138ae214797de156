"""A synthetic task of looking up several values at once.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example

ASK = "sum"
"""The word before the keys of a query."""


@dataclass(frozen=True, kw_only=True)
class Relations(SyntheticCorpus):
    """Pairs of a key and a number, then queries: "sum" and some keys. The ``tag`` of the last key is the sum of their
    numbers. Other words have no tag. The keys of a text are distinct, and so are those of a query.
    One look-up per key is needed at the same position. Difficulty: ``terms``, the number of keys of each query.

    Attributes:
        keys: number of keys.
        numbers: the numbers are 0, ..., numbers - 1.
        pairs: number of pairs in each text.
        queries: number of queries in each text.
        min_terms: minimum number of keys of a query.
        max_terms: maximum number of keys of a query in training and validation.
        test_max_terms: maximum number of keys of a query in the test.

    Raises:
        ValueError: an empty range, or a number that is too large or too small.
    """

    columns = ("text", "words", "tags")
    least_sizes = (("terms", 1),)

    keys: int
    numbers: int
    pairs: int
    queries: int
    min_terms: int
    max_terms: int
    test_max_terms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("numbers", 2), ("queries", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected at least {least}")
        if not self.test_max_terms <= self.pairs <= self.keys:
            raise ValueError(
                f"data.pairs={self.pairs}: expected at least data.test_max_terms={self.test_max_terms} and at most "
                f"data.keys={self.keys}"
            )

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(tag_labels=tuple(map(str, range(self.test_max_terms * (self.numbers - 1) + 1))))

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of the most frequent sum of as many numbers of the text: the best without knowing their keys."""
        chances = []
        for example in examples:
            values, terms = map(int, (example.words or ())[1 : 2 * self.pairs : 2]), (example.difficulty or {})["terms"]
            sums = Counter(sum(chosen) for chosen in combinations([*values], terms))
            chances.append(max(sums.values()) / sums.total())
        return {"accuracy": sum(chances) / len(chances)} if task == "tagging" else {}

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws pairs and queries."""
        (terms,) = sizes
        keys = generator.sample(range(self.keys), self.pairs)
        value_of = {key: generator.randrange(self.numbers) for key in keys}
        words = [word for key, value in value_of.items() for word in (f"k{key}", str(value))]
        tags: list[str | None] = [None] * len(words)
        for _ in range(self.queries):
            asked = generator.sample(keys, terms)
            words += [ASK, *(f"k{key}" for key in asked)]
            tags += [None] * terms + [str(sum(value_of[key] for key in asked))]
        return Example(" ".join(words), words=tuple(words), tags=tuple(tags), difficulty={"terms": terms})
