"""Examples with images or audio in files.

Tested by tests/assembly/test_files_on_demand.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import overload

from triptych.data.example import Example

MOST_BYTES = 2**28
"""Images, as 32-bit pixels, or audio of a source that stay in memory."""


class FileExamples(Sequence[Example]):
    """Examples whose images or audio are decoded whenever they are read, with the memory of a batch.

    Args:
        outlines: the examples with the shape or rate and the digest of their images or audio, without the content.
        decode: returns an example, given its index.
        key: see ``InMemoryExamples``; empty: unknown.
    """

    def __init__(self, outlines: Sequence[Example], decode: Callable[[int], Example], key: str = "") -> None:
        self.outlines, self._decode, self.key = outlines, decode, key

    def __len__(self) -> int:
        return len(self.outlines)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...

    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        places = range(len(self))[index]
        return self._decode(places) if isinstance(places, int) else [self._decode(place) for place in places]

    def __iter__(self) -> Iterator[Example]:
        return map(self._decode, range(len(self)))

    def choose(self, indices: Sequence[int]) -> "FileExamples":
        """Returns the examples with these indices."""
        return FileExamples([self.outlines[i] for i in indices], lambda place: self._decode(indices[place]))


def outline_of(example: Example) -> Example:
    """The example without the content of its image or audio."""
    image, audio = example.image, example.audio
    return replace(
        example,
        image=None if image is None else replace(image, content=b"", digest=image.sha256),
        audio=None if audio is None else replace(audio, content=b"", digest=audio.sha256),
    )


def outlines_of(examples: Iterable[Example]) -> Iterable[Example]:
    """The examples, where they are in files without the content of images and audio, which would be decoded."""
    return examples.outlines if isinstance(examples, FileExamples) else examples
