"""What a corpus hands over: examples in three splits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triptych.data.images import Image


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a corpus. A task uses the fields it needs and refuses a corpus that lacks them.

    Attributes:
        text: the input, or the whole text of a language model; of an image, its name.
        target: the text to produce (translation).
        label: the class of the whole text (classification).
        tags: one tag for each word of ``words`` (tagging).
        words: the text cut into the units that are tagged (tagging).
        image: the input, where it is no text.
        place: the file and the line that it was read from; None: it was made.
    """

    text: str
    target: str | None = None
    label: str | None = None
    words: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    image: Image | None = None
    place: tuple[Path, int] | None = field(default=None, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The beginning of a message about it."""
        return repr(self.text[:60]) if self.place is None else f"{self.place[0]}, line {self.place[1]}"


@dataclass(frozen=True, slots=True)
class Splits:
    """The three parts of a corpus. Selection looks at ``validation`` only; ``test`` is read once, at the end."""

    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
