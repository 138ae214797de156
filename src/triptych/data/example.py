"""What a corpus hands over: examples in three splits."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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


ROLES = ("system", "user", "assistant")
ANSWERING = "assistant"
"""The role that a model has."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one of those who talk says at a time.

    Attributes:
        role: one of ``ROLES``.
        content: the text.
    """

    role: str
    content: str


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
        messages: a conversation that ends with an answer of the model.
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
    messages: tuple[Message, ...] | None = None
    difficulty: Mapping[str, int] | None = field(default=None, repr=False, compare=False)
    place: Place | None = field(default=None, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The beginning of a message about it."""
        return repr(self.text[:60]) if self.place is None else at(self.place)


def conversation(messages: Sequence[Message], place: Place | None = None) -> Example:
    """The example of a conversation: its target is the last answer, and its text what was said before, a message a
    line."""
    before, last = messages[:-1], messages[-1]
    text = "\n".join(message.content for message in before)
    return Example(text, target=last.content, messages=tuple(messages), place=place)


def each_answer(example: Example) -> list[Example]:
    """The conversation up to each answer of the model; how many came before tells how hard it is. What is no
    conversation stays as it is."""
    if example.messages is None:
        return [example]
    ends = [i for i, message in enumerate(example.messages, 1) if message.role == ANSWERING]
    return [
        replace(conversation(example.messages[:end], example.place), difficulty={"turn": turn})
        for turn, end in enumerate(ends, 1)
    ]


def check_conversation(messages: Sequence[Message]) -> None:
    """Refuses what is no conversation that a model could learn from.

    Raises:
        ValueError: no message, an unknown role, a role out of turn, an empty message, or none that the model wrote.
    """
    check_turns(messages)
    if messages[-1].role != ANSWERING:
        raise ValueError(f"the last message is of {messages[-1].role!r}; expected an answer of 'assistant'")
    for i, message in enumerate(messages, 1):
        if not message.content.strip():
            raise ValueError(f"message {i} of {message.role} is empty")


def check_turns(messages: Sequence[Message]) -> None:
    """The same of a conversation that is going on; a model may have answered nothing."""
    if not messages:
        raise ValueError("an empty conversation")
    for i, message in enumerate(messages):
        before = messages[i - 1].role if i else None
        if message.role not in ROLES:
            raise ValueError(f"message {i + 1}: role {message.role!r}; expected {', '.join(ROLES)}")
        is_late = message.role == "system" and i > 0
        if is_late or message.role == before or (message.role == ANSWERING and before != "user"):
            order = "an optional system message, then user and assistant in turn"
            raise ValueError(f"message {i + 1}: {message.role!r} out of turn; expected {order}")
        if message.role != ANSWERING and not message.content.strip():
            raise ValueError(f"message {i + 1} of {message.role} is empty")
