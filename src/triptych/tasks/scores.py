"""What a comparison knows of a task: the metrics that its runs are compared by, and how their values are put into
words. It stands in the record of each run, so that a page needs to know no task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Score:
    """A metric that runs are compared by.

    Attributes:
        name: the same in all runs that can be compared by it.
        key: where ``metrics`` has it.
        title: its name in a sentence.
        higher_is_better: which way is up.
        unit: ``"%"`` for shares of one, otherwise what follows the number (may be empty).
        optimum_name: what the best reachable value is called.
        digits: behind the point, of a value that is no share.
        is_of_right_answers: whether an answer is simply right or wrong.
        numerator: where the metric is a quotient of sums over the examples: the numbers of answers.jsonl whose weighted
            sum stands above, ``right`` being 1 where the output is the reference; empty: it is no such quotient.
        denominator: likewise, what stands below; empty: the number of examples.
        note: what is to be said beside a verdict.
        counted: what the denominator counts, if runs can only be compared where as much of it was scored, and the note
            says so; empty: it does not matter.
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

    @property
    def direction(self) -> str:
        """``higher is better`` or ``lower is better``."""
        return "higher is better" if self.higher_is_better else "lower is better"

    def show(self, value: float) -> str:
        """A value in words, such as ``97.2 %`` or ``0.812 bits/byte``."""
        if self.unit == "%":
            hidden = value < 1 <= round(value, 3)  # 99.96 % is not 100.0 %
            return f"{100 * value:.{2 if hidden else 1}f} %"
        return f"{value:.{self.digits}f} {self.unit}".rstrip()

    def show_difference(self, *differences: float) -> str:
        """Differences in words, such as ``0.9 points`` or, of two, ``0.5 to 1.3 points``."""
        scale, unit = (100, "points") if self.unit == "%" else (1, self.unit)
        return f"{' to '.join(_short(scale * x) for x in differences)} {unit}".rstrip()

    def is_beyond(self, value: float, optimum: float) -> bool:
        """Whether a value is better than the optimum, by what ``show_gap`` shows."""
        return (value > optimum) == self.higher_is_better and not self.show_gap(value, optimum).startswith("at ")

    def show_gap(self, value: float, optimum: float) -> str:
        """Where a value stands to the optimum, such as ``0.4 points below the ceiling``. The optimum is what the best
        guesser scores in expectation: on one test set a model may be a little luckier."""
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
"""Differences below it are rounding errors of sums that are equal."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a comparison knows of a task.

    Attributes:
        title: its name on a page.
        scores: that a run can be compared by; of those that all runs have, the first counts.
        not_comparable: why its architectures cannot be compared; empty: they can.
        ranked_by: the number of answers.jsonl that says how good an answer is; empty: its share in the score.
        ranked_by_title: that number's name in a sentence.
        writes_text: whether an answer is a text that was written, so that a wrong one may be partly right.
    """

    title: str
    scores: Sequence[Score]
    not_comparable: str = ""
    ranked_by: str = ""
    ranked_by_title: str = ""
    writes_text: bool = False

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """From what ``dataclasses.asdict`` returned, as summary.json has it.

        Raises:
            TypeError: the values have another form.
        """
        return cls(**{**plain, "scores": tuple(Score(**score) for score in plain["scores"])})


LOSS = Score("loss", "test/loss", "loss", higher_is_better=False, optimum_name="minimum")
ACCURACY = Score(
    "accuracy", "test/accuracy", "accuracy", True, "%", is_of_right_answers=True, numerator={"right": 1.0}
)  # fmt: skip
EXACT_MATCH = Score(
    "exact_match", "test/exact_match", "exact match", True, "%", is_of_right_answers=True, numerator={"right": 1.0}
)  # fmt: skip
"""Scores of several tasks."""
