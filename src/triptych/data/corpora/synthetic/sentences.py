"""Synthetic sentences: which of two names is the actor, and in which of its senses a word is used.

Tested by tests/data/corpora/synthetic/test_synthetic_corpus.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.data.corpora.corpus import CorpusInfo
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus
from triptych.data.example import Example

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo")
VERBS = ("called", "helped", "pushed", "thanked")
FILLERS = ("today", "again", "then", "there", "quickly", "once", "perhaps", "indeed")
TOPICS = ("a", "b")
"""The two topics, and so the two senses."""


@dataclass(frozen=True, kw_only=True)
class Roles(SyntheticCorpus):
    """Sentences such as "Ben today pushed Eva": ``label`` is the actor, the first of two names. Other words stand
    anywhere between, before and after. Without the order of the words, one of two guesses is right. Difficulty:
    ``fillers``, their number.

    Attributes:
        names: number of names.
        min_fillers: minimum number of other words.
        max_fillers: maximum number of other words in training and validation.
        test_max_fillers: maximum number of other words in the test.

    Raises:
        ValueError: an empty range, or an impossible number of names.
    """

    columns = ("text", "label")
    least_sizes = (("fillers", 0),)

    names: int
    min_fillers: int
    max_fillers: int
    test_max_fillers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.names <= len(NAMES):
            raise ValueError(f"data.names={self.names}: expected 2 to {len(NAMES)}")

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(labels=NAMES[: self.names])

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of guessing one of the two names: the best without the order of the words."""
        return {"accuracy": 0.5} if task == "classification" else {}

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws a sentence, and other words at random places in it."""
        (fillers,) = sizes
        actor, other = generator.sample(NAMES[: self.names], 2)
        words = [actor, generator.choice(VERBS), other]
        for filler in generator.choices(FILLERS, k=fillers):
            words.insert(generator.randint(0, len(words)), filler)
        return Example(" ".join(words), label=actor, difficulty={"fillers": fillers})


@dataclass(frozen=True, kw_only=True)
class Senses(SyntheticCorpus):
    """Neutral words n0, n1, ..., one ambiguous word m0, m1, ... and one cue of topic a or b: a0, b0, ... The cue
    decides the sense. The ``tag`` of the ambiguous word is the topic; ``target`` repeats the text with the sense
    written out, as m3a. Difficulty: ``distance`` of the cue from the ambiguous word, and ``right``, 1 if the cue is on
    the right, where a causal model has not read it.

    Attributes:
        cues: number of cues of each topic.
        ambiguous: number of ambiguous words.
        neutral: number of neutral words.
        length: number of words of a text, without the last word of ``echo``.
        min_distance: minimum distance of the cue.
        max_distance: maximum distance of the cue in training and validation.
        test_max_distance: maximum distance of the cue in the test.
        echo: whether the text ends with the ambiguous word in its sense, as m3a. A language model then learns the
            senses from texts alone.

    Raises:
        ValueError: an empty range, no words of a kind, or a distance that does not fit into the length.
    """

    columns = ("text", "target", "words", "tags")
    least_sizes = (("distance", 1),)

    cues: int
    ambiguous: int
    neutral: int
    length: int
    min_distance: int
    max_distance: int
    test_max_distance: int
    echo: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cues", "ambiguous", "neutral"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name}={getattr(self, name)}: expected at least 1")
        if self.length <= self.test_max_distance:
            raise ValueError(
                f"data.length={self.length}: expected more than data.test_max_distance={self.test_max_distance}"
            )

    @property
    def info(self) -> CorpusInfo:
        return CorpusInfo(tag_labels=TOPICS)

    def optimum(self, task: str, architecture: str, examples: Sequence[Example]) -> dict[str, float]:
        """Like ``SyntheticCorpus.optimum``; a causal model guesses the sense where the cue is on the right."""
        if task != "tagging" or architecture != "decoder_only":
            return super().optimum(task, architecture, examples)
        chances = [0.5 if (example.difficulty or {})["right"] else 1.0 for example in examples]
        return {"accuracy": sum(chances) / len(chances)}

    def floor(self, task: str, examples: Sequence[Example]) -> dict[str, float]:
        """The accuracy of guessing the sense. (A bag of words has the cue: its order does not matter here.)"""
        return {"accuracy": 0.5} if task == "tagging" else {}

    def draw(self, generator: random.Random, sizes: tuple[int, ...]) -> Example:
        """Draws neutral words, and an ambiguous word and its cue in place of two of them."""
        (distance,) = sizes
        words = [f"n{number}" for number in generator.choices(range(self.neutral), k=self.length)]
        first = generator.randrange(self.length - distance)
        place, cue = generator.sample((first, first + distance), 2)
        topic, number = generator.choice(TOPICS), generator.randrange(self.ambiguous)
        words[place], words[cue] = f"m{number}", f"{topic}{generator.randrange(self.cues)}"
        sense = f"m{number}{topic}"
        translated = [*words[:place], sense, *words[place + 1 :]]
        echo = [sense] * self.echo
        tags = tuple(topic if index == place else None for index in range(self.length + self.echo))
        return Example(
            " ".join(words + echo),
            target=" ".join(translated + echo),
            words=tuple(words + echo),
            tags=tags,
            difficulty={"distance": distance, "right": int(cue > place)},
        )
