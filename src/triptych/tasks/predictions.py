"""The predictions of a task: for one input, and for the batches of a test.

Tested by tests/training/test_lightning_module.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from triptych.data import Image


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The most likely class of an input, and the probability of each class."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several outputs, and the score that ranks them (see ``triptych.models.generation.BeamSearch``)."""

    text: str
    score: float


Prediction = str | float | ClassPrediction | list[Candidate] | Image


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of a task for examples of the test split.

    Attributes:
        outputs: output for each example; None: the example was scored without a prediction.
        numbers: by name, one number per example: its contribution to the metrics.
        indices: indices of the examples in the split; None: those of the batch.
    """

    outputs: Sequence[str | None]
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    indices: Sequence[int] | None = None

    @classmethod
    def join(cls, parts: Iterable["Predictions"]) -> "Predictions | None":
        """Joins the predictions of the parts that have ``indices``; None: no part has."""
        known = [part for part in parts if part.indices is not None]
        if not known:
            return None
        numbers = {name: [*chain(*(part.numbers[name] for part in known))] for name in known[0].numbers}
        outputs = [*chain(*(part.outputs for part in known))]
        return cls(outputs, numbers, [*chain(*(part.indices or () for part in known))])


@dataclass(frozen=True, slots=True)
class TestPrediction:
    """The prediction for one example of the test split; a line of predictions.jsonl (docs/run_directory.md).

    Attributes:
        index: index of the example in the split.
        output: see ``Predictions``.
        numbers: see ``Predictions``.
    """

    __test__ = False  # tells pytest that this is no test class

    index: int
    output: str | None
    numbers: Mapping[str, float]
