"""The metrics that compare the runs of a task; the record of each run contains them for pages.

Tested by tests/report/test_labels.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric that compares runs.

    Attributes:
        name: equal in all runs that it can compare.
        key: key in ``metrics``.
        title: name in a sentence.
        higher_is_better: whether a higher value is better.
        unit: ``"%"`` for fractions, otherwise the unit after the number (may be empty).
        optimum_name: name of the best reachable value.
        digits: decimal places of a value that is not a fraction.
        is_of_right_answers: whether a prediction is either correct or incorrect.
        numerator: if the metric is a quotient of sums over the examples: weights of the numbers of predictions.jsonl in
            its numerator, ``right`` being 1 where the output is the reference; empty: it is no such quotient.
        denominator: weights of the numbers in the denominator; empty: the number of examples.
        note: note shown next to a verdict.
        is_bound: whether a value is an upper bound on what the metric means.
        counted: what the denominator counts, if runs are only comparable when it is equal, as the note states; empty:
            any runs are comparable.
    """

    name: str
    key: str
    title: str
    higher_is_better: bool
    unit: str = ""
    optimum_name: str = "ceiling"
    digits: int = 3
    is_of_right_answers: bool = False
    numerator: Mapping[str, float] = field(default_factory=dict)
    denominator: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    counted: str = ""
    is_bound: bool = False

    @property
    def direction(self) -> str:
        """``higher is better`` or ``lower is better``."""
        return "higher is better" if self.higher_is_better else "lower is better"

    def show(self, value: float) -> str:
        """Formats a value, such as ``97.2 %`` or ``0.812 bits/byte``, with ``≤`` before a bound."""
        if self.unit == "%":
            hidden = value < 1 <= round(value, 3)  # 99.96 % is not 100.0 %
            return f"{100 * value:.{2 if hidden else 1}f} %"
        return f"{'≤' if self.is_bound else ''}{value:.{self.digits}f} {self.unit}".rstrip()

    def show_difference(self, *differences: float) -> str:
        """Formats differences, such as ``0.9 points`` or, for two, ``0.5 to 1.3 points``."""
        scale, unit = (100, "points") if self.unit == "%" else (1, self.unit)
        return f"{' to '.join(_short(scale * x) for x in differences)} {unit}".rstrip()

    def is_beyond(self, value: float, optimum: float) -> bool:
        """Returns whether a value is better than the optimum, at the precision of ``show_gap``."""
        return (value > optimum) == self.higher_is_better and not self.show_gap(value, optimum).startswith("at ")

    def show_gap(self, value: float, optimum: float) -> str:
        """Formats the distance to the optimum, such as ``0.4 points below the ceiling``.

        It is the expected score of the Bayes-optimal predictor, which a model may slightly exceed on one test set."""
        relative = self.unit == "bits/byte" and optimum > 0
        gap = value / optimum - 1 if relative else value - optimum
        if abs(gap) < 5e-5:
            return f"at the {self.optimum_name}"
        size = f"{_short(100 * abs(gap))} %" if relative else self.show_difference(abs(gap))
        return f"{size} {'above' if gap > 0 else 'below'} the {self.optimum_name}"


def _short(number: float) -> str:
    if abs(number) < NOISE:
        return "0"
    return f"{number:.1f}" if abs(number) >= 1 else f"{number:.2g}"


NOISE = 1e-9
"""Smaller differences are rounding errors of equal sums."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The facts about a task that a comparison needs.

    Attributes:
        title: name on a page.
        comparison_metrics: scores that compare its runs; the first one that all runs have is used.
        not_comparable: reason why its architectures are not comparable; empty: they are.
        ranked_by: number of predictions.jsonl that ranks predictions; empty: the contribution to the score.
        ranked_by_title: name of that number in a sentence.
        generates_text: whether predictions are generated texts, so that an incorrect one may be partly correct.
    """

    title: str
    comparison_metrics: Sequence[MetricSpec]
    not_comparable: str = ""
    ranked_by: str = ""
    ranked_by_title: str = ""
    generates_text: bool = False

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Restores the facts from the output of ``dataclasses.asdict`` in summary.json.

        Raises:
            TypeError: if the values have another form.
        """
        scores = tuple(MetricSpec(**score) for score in plain["comparison_metrics"])
        return cls(**{**plain, "comparison_metrics": scores})


LOSS = MetricSpec("loss", "test/loss", "loss", higher_is_better=False, optimum_name="minimum")
ACCURACY = MetricSpec(
    "accuracy", "test/accuracy", "accuracy", True, "%", is_of_right_answers=True, numerator={"right": 1.0}
)  # fmt: skip
EXACT_MATCH = MetricSpec(
    "exact_match", "test/exact_match", "exact match", True, "%", is_of_right_answers=True, numerator={"right": 1.0}
)  # fmt: skip
"""Scores that several tasks share."""
