"""How much a difference depends on the examples in the test set: the paired bootstrap (Koehn 2004).

Tested by tests/report/statistics/test_standings.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from triptych.report.read_records import RecordedRun
from triptych.tasks.bleu import make_bleu
from triptych.tasks.metric_specs import MetricSpec

NUM_RESAMPLES = 1000
SEED = 12345


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two means of a metric over runs, and its bootstrap interval over test examples.

    Attributes:
        difference: the first minus the second, on the test set itself.
        low: the 2.5th percentile over the draws.
        high: the 97.5th.
        p: two-sided p-value of no difference: the share of draws whose difference is as far from their mean as the one
            on the test set is from 0.
    """

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Terms:
    """The contribution of each example's prediction to a metric.

    Attributes:
        terms: a row per example.
        value: the metric, from the sum of rows.
    """

    terms: Float[np.ndarray, "examples terms"]
    value: Callable[[Float[np.ndarray, " terms"]], float]


def terms_of(metric: MetricSpec, run: RecordedRun) -> Terms | None:
    """Each example's contribution; None if the run has no predictions, or the metric is not a function of sums."""
    if not run.predictions:
        return None
    if metric.name == "bleu":
        if "task.bleu_tokenizer" not in run.settings:
            return None
        try:
            score = make_bleu(str(run.settings["task.bleu_tokenizer"]))
        except ValueError:  # was present when the model was trained
            return None
        outputs, references = ([str(answer[key]) for answer in run.predictions] for key in ("output", "reference"))
        rows = score._extract_corpus_statistics(outputs, [references])
        return Terms(np.array(rows, float), lambda sums: float(score._compute_score_from_stats(list(sums)).score))
    columns = _ratio(metric, run)
    return None if columns is None else Terms(np.array(columns, float), _quotient)


def _quotient(sums: Float[np.ndarray, "2"]) -> float:
    """0 / 0 is 0, such as F1 of a text without entities."""
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def _ratio(metric: MetricSpec, run: RecordedRun) -> list[tuple[float, float]] | None:
    """Two numbers per example; the metric is the quotient of their sums. None if it is none, or the predictions
    lack these numbers."""
    own = next(score for score in run.task_info.comparison_metrics if score.name == metric.name)
    if not own.numerator:
        return None

    def weighted(answer: Mapping[str, object], weights: Mapping[str, float]) -> float:
        right = {"right": float(answer["output"] == answer["reference"])} if "right" in weights else {}
        numbers = {name: value for name, value in answer.items() if isinstance(value, int | float)}
        return sum(weight * {**numbers, **right}[name] for name, weight in weights.items())

    try:
        return [
            (weighted(answer, own.numerator), weighted(answer, own.denominator) if own.denominator else 1.0)
            for answer in run.predictions
        ]
    except KeyError:  # predictions of a version that did not record these numbers
        return None


def scored_by(metric: MetricSpec, run: RecordedRun) -> float | None:
    """The denominator of a metric, over the whole test; None if the run's predictions do not contain it."""
    columns = _ratio(metric, run)
    return sum(denominator for _, denominator in columns) if columns else None


def are_paired(runs: Sequence[RecordedRun]) -> bool:
    """Whether all runs have predictions for the same examples in the same order."""
    return bool(runs[0].predictions) and len({run.predictions.asked for run in runs}) == 1


def resample(runs: Sequence[Terms]) -> list[Float[np.ndarray, " draws"]]:
    """The metric of each run on the test set itself, then on each draw of examples with replacement. All runs have the
    same examples, and the same draws of them."""
    random = np.random.default_rng(SEED)
    num_examples = len(runs[0].terms)
    even, every = np.full(num_examples, 1 / num_examples), np.hstack([of_run.terms for of_run in runs])
    sums = [every.sum(0), *(random.multinomial(num_examples, even) @ every for _ in range(NUM_RESAMPLES))]
    ends = np.cumsum([of_run.terms.shape[1] for of_run in runs])[:-1]
    parts = np.split(np.array(sums), ends, axis=1)
    return [np.array([run.value(row) for row in rows]) for run, rows in zip(runs, parts, strict=True)]


def paired_bootstrap(
    first: Sequence[Float[np.ndarray, " draws"]], second: Sequence[Float[np.ndarray, " draws"]]
) -> Paired:
    """The difference of the mean values of two groups of runs, with one run per seed in each.

    Args:
        first: of each run, the result of ``resample``; so is ``second``.
    """
    observed, *differences = (np.mean(first, 0) - np.mean(second, 0)).tolist()
    drawn = np.array(differences)
    low, high = np.percentile(drawn, [2.5, 97.5])
    as_far = np.abs(drawn - drawn.mean()) >= abs(observed)
    return Paired(observed, float(low), float(high), float((as_far.sum() + 1) / (NUM_RESAMPLES + 1)))
