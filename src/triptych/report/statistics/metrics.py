"""The primary metric of each task, and how its values are put into words."""

from collections.abc import Sequence
from dataclasses import dataclass

from triptych.report.records import Run


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that runs are compared by.

    Attributes:
        key: its name in ``Run.metrics``.
        title: its name in a sentence.
        higher_is_better: which way is up.
        unit: ``"%"`` for shares of one, otherwise what follows the number (may be empty).
        optimum_name: what the best reachable value is called.
        digits: behind the point, of a value that is no share.
    """

    key: str
    title: str
    higher_is_better: bool
    unit: str
    optimum_name: str
    digits: int = 3

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
    return f"{number:.1f}" if abs(number) >= 1 else f"{number:.2g}"


EXACT_MATCH = Metric("test/exact_match", "exact match", True, "%", "ceiling")
BLEU = Metric("test/bleu", "BLEU", True, "", "ceiling", digits=1)
ACCURACY = Metric("test/accuracy", "accuracy", True, "%", "ceiling")
BITS_PER_BYTE = Metric("test/bits_per_byte", "bits per byte", False, "bits/byte", "entropy")
CONTINUATION = Metric(
    "test/continuation_bits_per_byte", "bits per byte of the continuation", False, "bits/byte", "entropy"
)
SPEARMAN = Metric("test/spearman", "Spearman correlation", True, "", "ceiling")
F1 = Metric("test/f1", "F1 of the words", True, "%", "ceiling")
ENTITY_F1 = Metric("test/entity_f1", "F1 of the entities", True, "%", "ceiling")
LOSS = Metric("test/loss", "loss", False, "", "minimum")

_PRIMARY = {
    "translation": BLEU,
    "classification": ACCURACY,
    "similarity": SPEARMAN,
    "question_answering": F1,
    "tagging": ACCURACY,
    "language_modeling": BITS_PER_BYTE,
    "denoising": LOSS,
}


def metric_key(metric: Metric, run: Run) -> str:
    """The key that holds the metric in this run: the full model's ``test/bits_per_byte`` is its continuation's."""
    return BITS_PER_BYTE.key if metric is CONTINUATION and run.architecture == "full" else metric.key


def primary_metric(runs: Sequence[Run]) -> Metric:
    """Choose the metric that all runs of one task are compared by.

    Args:
        runs: the runs of one task on the same data.

    Returns:
        the metric of the task: of translation BLEU, of question answering F1, but exact match where its best value is
        known; of tagging accuracy, but F1 of the entities where the tags mark some.

    Raises:
        ValueError: in one line, a run's ``summary.json``, the key, and what was expected there.
    """
    task = runs[0].task
    if task in ("translation", "question_answering") and all(EXACT_MATCH.key in run.optimum for run in runs):
        metric = EXACT_MATCH
    elif task == "tagging" and all(ENTITY_F1.key in run.metrics for run in runs):
        metric = ENTITY_F1
    elif task == "language_modeling" and any(run.architecture == "full" for run in runs):
        metric = CONTINUATION
    else:
        metric = _PRIMARY[task]
    for run in runs:
        if (key := metric_key(metric, run)) not in run.metrics:
            raise ValueError(f"{run.directory}/summary.json: key metrics has no {key}, expected in each {task} run")
    return metric
