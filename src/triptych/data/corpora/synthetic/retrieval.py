"""Synthetic retrieval tasks: associative recall, over a distance too, and a needle in a haystack."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus, check_vocabulary
from triptych.data.example import Example

POWER = 0.01
"""Exponent of the distribution of query positions (Arora et al. 2023, as in their code)."""


@dataclass(frozen=True, kw_only=True)
class Recall(SyntheticCorpus):
    """Multi-query associative recall (MQAR): pairs of a key and a value, then each key once, in any order. The ``tags``
    of these queries are the values; other words have no tag. Arora et al. 2023, Zoology, section 3.1 and appendix; the
    full size is vocabulary=8192 with 4 to 64 pairs in 64 to 512 words.

    Half of the vocabulary are keys and half values; the keys of a text are distinct, and so are its values. After the
    pairs, every second position may hold a query. These positions are drawn without replacement with probabilities
    proportional to g ** -0.99, where g = 1, 2, ... is the number of the position. All other positions hold random
    words. The value of a query is thus the word after its first occurrence. Difficulty: ``pairs`` and ``length``.

    Attributes:
        vocabulary: number of words, keys and values together.
        min_pairs: minimum number of pairs.
        max_pairs: maximum number of pairs in training and validation.
        test_max_pairs: maximum number of pairs in the test.
        min_length: minimum number of words in a text; at least 4 per pair.
        max_length: maximum number of words in training and validation.
        test_max_length: maximum number of words in the test.

    Raises:
        ValueError: an empty range, or more pairs than keys or than fit into the length.
    """

    columns = ("text", "words", "tags")
    least_sizes = (("pairs", 1), ("length", 4))

    vocabulary: int
    min_pairs: int
    max_pairs: int
    test_max_pairs: int
    min_length: int
    max_length: int
    test_max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.vocabulary, 2 * self.test_max_pairs, "a key and a value for each pair")
        self.check_fits_length("pairs", 4, "a quarter")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(tag_labels=tuple(f"v{number}" for number in range(self._num_keys)))

    @property
    def _num_keys(self) -> int:
        return self.vocabulary // 2

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of guessing among the values of a text: one query of each is right, on average."""
        num_queries = sum(tag is not None for example in examples for tag in example.tags or ())
        return {"accuracy": len(examples) / num_queries} if task == "tagging" else {}

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the numbers of pairs and of words."""
        pairs, length = super().choose_sizes(generator, is_test=is_test)
        return pairs, max(length, 4 * pairs)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws pairs, and queries among other words."""
        num_pairs, length = sizes
        keys, values = (
            [f"{kind}{number}" for number in generator.sample(range(self._num_keys), num_pairs)] for kind in "kv"
        )
        words = [word for pair in zip(keys, values, strict=True) for word in pair]
        rest = length - len(words)
        words += [f"{'kv'[number % 2]}{number // 2}" for number in generator.choices(range(2 * self._num_keys), k=rest)]
        tags: list[str | None] = [None] * length
        for place, key, value in zip(self._draw_places(generator, num_pairs, rest // 2), keys, values, strict=True):
            words[2 * (num_pairs + place)], tags[2 * (num_pairs + place)] = key, value
        difficulty = {"pairs": num_pairs, "length": length}
        return Example(" ".join(words), words=tuple(words), tags=tuple(tags), difficulty=difficulty)

    @staticmethod
    def _draw_places(generator: random.Random, count: int, num_places: int) -> list[int]:
        """Draws ``count`` sorted positions without replacement: those whose exponential clocks with rates g ** (POWER -
        1) ring first."""
        rings = [generator.expovariate((place + 1) ** (POWER - 1)) for place in range(num_places)]
        return sorted(range(num_places), key=rings.__getitem__)[:count]


@dataclass(frozen=True, kw_only=True)
class Needle(SyntheticCorpus):
    """A needle in a haystack: uniformly drawn words with one needle among them; ``label`` is the needle. (After
    Mohtashami and Jaggi 2023, Landmark Attention, section 4.2, with a pass key in a long text.) Difficulty: ``length``,
    and ``depth``, the position of the needle from 0 (start) to 100 (end), in tens.

    Attributes:
        vocabulary: number of other words: 0, 1, 2, ...
        needles: number of needles: needle0, needle1, ...
        min_length: minimum number of words in a text.
        max_length: maximum number of words in training and validation.
        test_max_length: maximum number of words in the test.

    Raises:
        ValueError: an empty range, no words, or fewer than two needles.
    """

    columns = ("text", "label")
    least_sizes = (("length", 2),)

    vocabulary: int
    needles: int
    min_length: int
    max_length: int
    test_max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.vocabulary, 1, "words")
        if self.needles < 2:
            raise ValueError(f"data.needles={self.needles}: expected at least 2")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(labels=tuple(f"needle{number}" for number in range(self.needles)))

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the length and the position of the needle."""
        (length,) = super().choose_sizes(generator, is_test=is_test)
        return length, generator.randrange(length)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws words with a needle among them."""
        length, place = sizes
        words = [str(number) for number in generator.choices(range(self.vocabulary), k=length)]
        words[place] = f"needle{generator.randrange(self.needles)}"
        difficulty = {"length": length, "depth": 10 * round(10 * place / (length - 1))}
        return Example(" ".join(words), label=words[place], difficulty=difficulty)


@dataclass(frozen=True, kw_only=True)
class Distance(SyntheticCorpus):
    """Pairs of a key and a value, a gap of other words, and then each key once, in any order. The ``tags`` of these
    queries are the values. The keys of a text are distinct, and so are its values. Difficulty: ``pairs`` and ``gap``.
    (As in Arora et al. 2023, where the number of pairs varies; Jelassi et al. 2024 bound what a state of fixed size
    recalls.)

    Attributes:
        vocabulary: number of keys and values together.
        fillers: number of other words.
        pairs: the numbers of pairs; each is equally frequent.
        gaps: the numbers of other words between the pairs and the queries, in training and validation.
        test_gaps: the same for the test.

    Raises:
        ValueError: a list is empty or has a number below 1, the test lacks a gap of training, or there are too few
            words.
    """

    columns = ("text", "words", "tags")
    least_sizes = ()

    vocabulary: int
    fillers: int
    pairs: Sequence[int]
    gaps: Sequence[int]
    test_gaps: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pairs", "gaps", "test_gaps"):
            sizes = [*getattr(self, name)]
            if not sizes or min(sizes) < 1:
                raise ValueError(f"data.{name}={sizes}: expected numbers of at least 1")
        if missing := set(self.gaps) - set(self.test_gaps):
            raise ValueError(f"data.test_gaps={[*self.test_gaps]}: expected also {min(missing)}, as in data.gaps")
        check_vocabulary(self.vocabulary, 2 * max(self.pairs), "a key and a value for each pair")
        if self.fillers < 1:
            raise ValueError(f"data.fillers={self.fillers}: expected at least 1")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(tag_labels=tuple(f"v{number}" for number in range(self.vocabulary // 2)))

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of guessing among the values of a text, the best without the order of its words."""
        num_queries = sum((example.difficulty or {})["pairs"] for example in examples)
        return {"accuracy": len(examples) / num_queries} if task == "tagging" else {}

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """Draws the number of pairs and the gap."""
        return generator.choice(self.pairs), generator.choice(self.test_gaps if is_test else self.gaps)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws pairs, fillers, and the order of the keys to look up."""
        num_pairs, gap = sizes
        keys, values = (generator.sample(range(self.vocabulary // 2), num_pairs) for _ in "kv")
        value_of = dict(zip(keys, values, strict=True))
        words = [word for key, value in value_of.items() for word in (f"k{key}", f"v{value}")]
        words += generator.choices([f"f{number}" for number in range(self.fillers)], k=gap)
        asked = generator.sample(keys, num_pairs)
        tags = (None,) * len(words) + tuple(f"v{value_of[key]}" for key in asked)
        words += (f"k{key}" for key in asked)
        difficulty = {"pairs": num_pairs, "gap": gap}
        return Example(" ".join(words), words=tuple(words), tags=tags, difficulty=difficulty)
