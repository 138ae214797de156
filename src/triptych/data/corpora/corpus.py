"""The interface of a corpus."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Protocol

from triptych.data.example import Example
from triptych.data.example_columns import TEXTS, ExampleColumns, texts_of
from triptych.data.file_examples import outlines_of
from triptych.data.plain_dataclass import PlainDataclass
from triptych.data.readers.files import source_files
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits


@dataclass(frozen=True, slots=True)
class CorpusInfo(PlainDataclass):
    """Metadata of a corpus that a checkpoint contains.

    Attributes:
        labels: classes of classification.
        tag_labels: classes of tagging.
        is_stream: whether the texts are long and read in windows, not line by line.
        words_are_characters: whether the tagged words are single characters.
        has_pairs: whether the inputs are text pairs; set from the first training example.
        has_speakers: whether the speakers of the audio are known; set from the first training example.
        version: version of the data source, if it has one (Python 3.11.7).
        sha256: fingerprint of the training examples; empty before they are read.
    """

    labels: tuple[str, ...] = ()
    tag_labels: tuple[str, ...] = ()
    is_stream: bool = False
    words_are_characters: bool = False
    has_pairs: bool = False
    has_speakers: bool = False
    version: str = ""
    sha256: str = ""


class Corpus(Protocol):
    """A source of examples.

    Attributes:
        columns: fields of ``Example`` that the corpus has, or ``long_text``, which is read in windows. A task needs
            some of them.
        info: metadata for checkpoints.

    If the examples of a Triptych corpus depend only on its settings, it sets ``is_made = True``, and they are cached.
    If they also depend on text files, ``files`` lists them.
    A corpus may also have ``floor(task, examples)``: for each metric where it is known, the score of a simple rule,
    such as one that reads only the first word. A run with no better score has not learned.
    """

    columns: tuple[str, ...]
    info: CorpusInfo

    def splits(self) -> Splits: ...

    def optimum(self, task: str, architecture: str, examples: Sequence[Example] | LongText) -> dict[str, float]:
        """Returns the best score that any model can reach on these examples, for each metric where it is known."""
        ...


class RealCorpus:
    """Base of corpora of real data, whose best scores are unknown."""

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        return {}


class TextFileCorpus(RealCorpus):
    """Base of corpora that are read from text files: ``train``, ``validation`` and ``test`` in ``dir``."""

    @property
    def files(self) -> list[Path]:
        """The files that determine the examples, with the settings; empty: others do, too."""
        return source_files(*(getattr(self, name) for name in ("dir", "train", "validation", "test")))


OF_TEXTS = (
    "Example(text={!r}, target={!r}, label={!r}, words=None, tags=None, image=None, audio=None, text_pair={!r}, "
    "score=None, answers=None, messages=None)"
)
"""``repr`` of an example with only ``TEXTS``."""


def sha256(splits: Splits) -> str:
    """Hashes the examples, including their order."""
    digest = hashlib.sha256()
    for split in (splits.train, splits.validation, splits.test):
        digest.update(b"\x00split")
        if isinstance(split, LongText):
            shown: Iterable[str] = [repr(split.sha256)]
        elif isinstance(split, ExampleColumns) and split.has_only_texts:
            shown = starmap(OF_TEXTS.format, texts_of(split, *TEXTS))
        else:
            shown = map(repr, outlines_of(split))
        for text in shown:
            digest.update(text.encode())
    return digest.hexdigest()
