"""Probes of what is found again in a text: associative recall, and a needle in a haystack."""

import random
from dataclasses import dataclass

from triptych.data.corpora.corpus import CorpusFacts
from triptych.data.corpora.probes.probe import Axis, Probe, check_vocabulary
from triptych.data.example import Example

POWER = 0.01
"""Of the law of the places of queries (Arora et al. 2023, as in their code)."""


@dataclass(frozen=True, kw_only=True)
class Recall(Probe):
    """Associative recall with many queries: pairs of a key and a value, then each key again, once, in any order; the
    ``tags`` of these queries are the values, and other words have no tag. (MQAR: Arora et al. 2023, Zoology, section
    3.1 and appendix; its full size is vocabulary=8192, 4 to 64 pairs in 64 to 512 words.)

    Half of the words are keys and half are values, and the keys of a text differ, as do its values. Behind the pairs,
    every second place may hold a query; those that do are drawn without replacement with probabilities proportional to
    g ** -0.99, where g = 1, 2, ... is the number of the place. All other places hold any words. So the value of a query
    is the word behind the first time that it stands in the text. Difficulty: ``pairs`` and ``length``.

    Attributes:
        vocabulary: how many words there are, keys and values.
        min_pairs: of a key and a value, at least.
        max_pairs: at most, in training and validation.
        test_max_pairs: at most, in the test.
        min_length: words of a text, at least; and at least 4 for each pair.
        max_length: at most, in training and validation.
        test_max_length: at most, in the test.

    Raises:
        ValueError: a range that is empty, more pairs than keys, or than there is room for.
    """

    columns = ("text", "words", "tags")

    vocabulary: int
    min_pairs: int
    max_pairs: int
    test_max_pairs: int
    min_length: int
    max_length: int
    test_max_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._pairs, self._length
        check_vocabulary(self.vocabulary, 2 * self.test_max_pairs, "a key and a value for each pair")
        for name in ("", "test_"):
            pairs, length = getattr(self, f"{name}max_pairs"), getattr(self, f"{name}max_length")
            if 4 * pairs > length:
                raise ValueError(
                    f"data.{name}max_pairs={pairs}: expected at most {length // 4}, a quarter of data.{name}max_length"
                )

    @property
    def _pairs(self) -> Axis:
        return Axis("pairs", self.min_pairs, self.max_pairs, self.test_max_pairs)

    @property
    def _length(self) -> Axis:
        return Axis("length", self.min_length, self.max_length, self.test_max_length, least=4)

    @property
    def facts(self) -> CorpusFacts:
        """The values."""
        return CorpusFacts(tag_labels=tuple(f"v{number}" for number in range(self._num_keys)))

    @property
    def _num_keys(self) -> int:
        return self.vocabulary // 2

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The numbers of pairs and of words."""
        pairs = self._pairs.draw(generator, is_test=is_test)
        return pairs, max(self._length.draw(generator, is_test=is_test), 4 * pairs)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Pairs, and queries among other words."""
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
        """So many places, one after the other, each by its probability among those that are left: those whose
        exponential clocks of the rates g ** (POWER - 1) ring first."""
        rings = [generator.expovariate((place + 1) ** (POWER - 1)) for place in range(num_places)]
        return sorted(range(num_places), key=rings.__getitem__)[:count]


@dataclass(frozen=True, kw_only=True)
class Needle(Probe):
    """A needle in a haystack: words, drawn uniformly, and somewhere among them one that is a needle; ``label`` says
    which. (After Mohtashami and Jaggi 2023, Landmark Attention, section 4.2, who hide a pass key in a long text.)
    Difficulty: ``length``, and ``depth``, where the needle stands: 0 at the beginning, 100 at the end, in tens.

    Attributes:
        vocabulary: how many words there are besides the needles: 0, 1, 2, ...
        needles: how many needles there are: needle0, needle1, ...
        min_length: words of a text, at least.
        max_length: at most, in training and validation.
        test_max_length: at most, in the test.

    Raises:
        ValueError: a range that is empty, no words, or fewer than two needles.
    """

    columns = ("text", "label")

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
        _ = self._length

    @property
    def _length(self) -> Axis:
        return Axis("length", self.min_length, self.max_length, self.test_max_length, least=2)

    @property
    def facts(self) -> CorpusFacts:
        """The needles."""
        return CorpusFacts(labels=tuple(f"needle{number}" for number in range(self.needles)))

    def choose_sizes(self, generator: random.Random, *, is_test: bool) -> tuple[int, ...]:
        """The length, and the place of the needle."""
        length = self._length.draw(generator, is_test=is_test)
        return length, generator.randrange(length)

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Words with a needle among them."""
        length, place = sizes
        words = [str(number) for number in generator.choices(range(self.vocabulary), k=length)]
        words[place] = f"needle{generator.randrange(self.needles)}"
        difficulty = {"length": length, "depth": 10 * round(10 * place / (length - 1))}
        return Example(" ".join(words), label=words[place], difficulty=difficulty)
