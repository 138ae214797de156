"""What every source of data offers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from triptych.data.example import Example
from triptych.data.facts import Facts
from triptych.data.readers.long_text import LongText
from triptych.data.splits import Splits


@dataclass(frozen=True, slots=True)
class CorpusFacts(Facts):
    """What a trained model must remember of its corpus.

    Attributes:
        labels: the classes of classification.
        tag_labels: the classes of tagging.
        is_stream: whether the texts are long and are read in windows, not line by line.
        words_are_characters: whether the words that are tagged are single characters.
        has_pairs: whether the inputs are pairs of texts; seen at the first example of the training.
        has_speakers: whether it is known who speaks in a sound; likewise.
        version: of what the examples come from, where it has one (Python 3.11.7).
        sha256: of the examples of the training; empty before they are read.
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
        columns: what it has, of which a task needs some: names of fields of ``Example``, or ``long_text``, which is
            read in windows.
        facts: what a model must remember of it.

    One of ours whose examples follow from its settings alone says ``is_made = True``: they are kept.
    """

    columns: tuple[str, ...]
    facts: CorpusFacts

    def splits(self) -> Splits:
        """The examples."""
        ...

    def optimum(self, task: str, architecture: str, examples: Sequence[Example] | LongText) -> dict[str, float]:
        """The best values of the metrics that any model can reach on these examples, as far as they are known."""
        ...


class RealCorpus:
    """What our corpora of real data have in common: their best reachable values are not known."""

    def optimum(self, task: str, architecture: str, examples: object) -> dict[str, float]:
        """None."""
        return {}


def sha256(splits: Splits) -> str:
    """Equal for equal examples in equal order."""
    digest = hashlib.sha256()
    for split in (splits.train, splits.validation, splits.test):
        digest.update(b"\x00split")
        for example in [split.sha256] if isinstance(split, LongText) else split:
            digest.update(repr(example).encode())
    return digest.hexdigest()
