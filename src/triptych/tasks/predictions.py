"""What a task predicts: for one input, and for the batches of a test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from triptych.data import Image


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The likeliest class of a text, and the probability of each."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several answers, and the score by which they are ranked (see
    ``triptych.models.generation.BeamSearch``)."""

    text: str
    score: float


Prediction = str | float | ClassPrediction | list[Candidate] | Image


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a task predicted for examples of the test split.

    Attributes:
        outputs: for each example; None: the example was scored, nothing was predicted.
        numbers: by name, a number per example: its share of the metrics.
        indices: of the examples in the split; None: those of the batch.
    """

    outputs: Sequence[str | None]
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    indices: Sequence[int] | None = None

    @classmethod
    def join(cls, parts: Iterable["Predictions"]) -> "Predictions | None":
        """Those of several batches whose examples are known, as one; None: of none."""
        known = [part for part in parts if part.indices is not None]
        if not known:
            return None
        numbers = {name: [*chain(*(part.numbers[name] for part in known))] for name in known[0].numbers}
        outputs = [*chain(*(part.outputs for part in known))]
        return cls(outputs, numbers, [*chain(*(part.indices or () for part in known))])


@dataclass(frozen=True, slots=True)
class TestPrediction:
    """The prediction for one example of the test split; a line of answers.jsonl (docs/run_directory.md).

    Attributes:
        index: of the example in the split.
        output: see ``Predictions``.
        numbers: likewise.
    """

    __test__ = False  # not a class of tests, whatever pytest thinks of its name

    index: int
    output: str | None
    numbers: Mapping[str, float]
