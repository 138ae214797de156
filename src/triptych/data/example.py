"""Examples, the items of a corpus.

Tested by tests/data/corpora/test_conversations.py and tests/tasks/test_chat.py.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from triptych.config import error_prefix
from triptych.data.audio import Audio
from triptych.data.images import Image, as_image

SourceLocation = tuple[Path, int | str]
"""A file or a dataset, and the position in it: a line number, or a text such as "row 7"."""


def at(place: SourceLocation) -> str:
    """Formats a place as the start of a message."""
    return f"{place[0]}, {f'line {place[1]}' if isinstance(place[1], int) else place[1]}"


@contextmanager
def without_collection() -> Iterator[None]:
    """Disables garbage collection while many objects are made that all stay alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A span of a text that answers a question.

    Attributes:
        text: the answer.
        start: position of its first character in the text.
    """

    text: str
    start: int


ROLES = ("system", "user", "assistant")
ANSWERING = "assistant"
"""The role of the model."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: one of ``ROLES``.
        content: the text.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a corpus. A task uses the fields that it needs; a corpus without them is an error.

    Attributes:
        text: the input, or the whole text for a language model; for images and audio, the name of the file.
        target: the text to generate (translation, transcription).
        label: the class of the text, or of the text pair (classification).
        tags: one tag per word of ``words`` (tagging); None: the word has no tag and is not scored.
        words: the text split into the units that are tagged (tagging).
        image: the image, for tasks with image input.
        audio: the audio, for tasks with audio input.
        text_pair: the second text of a pair (classification, similarity); the context of the question ``text``.
        score: the number to predict (similarity).
        answers: spans of ``text_pair`` that answer the question, all correct; empty: the question has no answer.
        messages: a conversation that ends with a message of the model.
        difficulty: measures of difficulty by name, such as the length; None: unknown.
        place: where the example was read from; None: it was generated.
    """

    text: str
    target: str | None = None
    label: str | None = None
    words: tuple[str, ...] | None = None
    tags: tuple[str | None, ...] | None = None
    image: Image | None = None
    audio: Audio | None = None
    text_pair: str | None = None
    score: float | None = None
    answers: tuple[AnswerSpan, ...] | None = None
    messages: tuple[Message, ...] | None = None
    difficulty: Mapping[str, int] | None = field(default=None, repr=False, compare=False)
    place: SourceLocation | None = field(default=None, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The start of a message about the example."""
        return repr(self.text[:60]) if self.place is None else at(self.place)

    def pixels(self, shape: tuple[int, int, int], of: str = "patches") -> Float[np.ndarray, "channels height width"]:
        """Returns the pixels of the image, from 0 to 1; the arguments are those of ``as_image``.

        Raises:
            ValueError: if the image is missing or has another size.
        """
        with error_prefix(f"{self.where}: "):
            if self.image is None:
                raise ValueError("there is no image")
            return as_image(self.image, shape, of)


def conversation(messages: Sequence[Message], place: SourceLocation | None = None) -> Example:
    """Makes the example of a conversation. Its target is the last message, and its text the previous messages, one per
    line."""
    before, last = messages[:-1], messages[-1]
    text = "\n".join(message.content for message in before)
    return Example(text, target=last.content, messages=tuple(messages), place=place)


def each_answer(example: Example) -> list[Example]:
    """Splits a conversation into one example per message of the model, each with all previous messages. The difficulty
    is the number of the turn. Other examples are returned unchanged."""
    if example.messages is None:
        return [example]
    ends = [i for i, message in enumerate(example.messages, 1) if message.role == ANSWERING]
    talks = [conversation(example.messages[:end], example.place) for end in ends]
    return [replace(talk, difficulty={"turn": turn}) for turn, talk in enumerate(talks, 1)]


def check_conversation(messages: Sequence[Message]) -> None:
    """Checks that a model can be trained on a conversation.

    Raises:
        ValueError: no messages, an unknown role, a role out of turn, an empty message, or a last message of another
            role than the model's.
    """
    check_turns(messages)
    if messages[-1].role != ANSWERING:
        raise ValueError(f"the last message has the role {messages[-1].role!r}; expected 'assistant'")
    for i, message in enumerate(messages, 1):
        if not message.content.strip():
            raise ValueError(f"message {i} of {message.role} is empty")


def check_turns(messages: Sequence[Message]) -> None:
    """Checks an unfinished conversation: like ``check_conversation``, but it may end with any role, and the model's
    messages may be empty."""
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
