"""What a corpus hands over: examples in three splits."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from triptych.data.images import Image
from triptych.data.sound import Sound

Place = tuple[Path, int | str]
"""A file or a data set, and where in it: the number of a line, or a text such as "row 7"."""


def at(place: Place) -> str:
    """The beginning of a message about what was read from there."""
    return f"{place[0]}, {f'line {place[1]}' if isinstance(place[1], int) else place[1]}"


@contextmanager
def without_collection() -> Iterator[None]:
    """For what makes many objects, all of which stay: Python would look through them for garbage again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a text that answers a question.

    Attributes:
        text: of the answer.
        start: the place of its first character in the text.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a corpus. A task uses the fields it needs and refuses a corpus that lacks them.

    Attributes:
        text: the input, or the whole text of a language model; of an image or a sound, its name.
        target: the text to produce (translation, transcription).
        label: the class of the whole text, or of the pair (classification).
        tags: one tag for each word of ``words`` (tagging); None: the word has none, and is not asked.
        words: the text cut into the units that are tagged (tagging).
        image: the input, where it is no text.
        sound: the input, where it is heard.
        pair: the second text of a pair (classification, similarity); the text that answers the question ``text``.
        score: a number to predict (similarity).
        answers: parts of ``pair`` that answer the question, any of which is right; none: it has no answer.
        difficulty: what makes it hard, in numbers by name (its length, for instance); None: nobody says.
        place: that it was read from; None: it was made.
    """

    text: str
    target: str | None = None
    label: str | None = None
    words: tuple[str, ...] | None = None
    tags: tuple[str | None, ...] | None = None
    image: Image | None = None
    sound: Sound | None = None
    pair: str | None = None
    score: float | None = None
    answers: tuple[Answer, ...] | None = None
    difficulty: Mapping[str, int] | None = field(default=None, repr=False, compare=False)
    place: Place | None = field(default=None, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The beginning of a message about it."""
        return repr(self.text[:60]) if self.place is None else at(self.place)
