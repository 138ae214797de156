"""How far a difference depends on which examples stand in the test set: the paired bootstrap (Koehn 2004)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from triptych.report.read_records import Run
from triptych.tasks.corpus_score import make_bleu
from triptych.tasks.scores import Score

NUM_RESAMPLES = 1000
SEED = 12345


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two means of a metric over runs, and what it is on other draws of the same test set.

    Attributes:
        difference: the first less the second, on the test set itself.
        low: the 2.5th percentile of the differences on the draws.
        high: the 97.5th.
        p: how often a difference as large would come up if there were none: the share of the draws whose difference is
            as far from their mean as the one on the test set is from 0.
    """

    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What the answers to each example add to a metric.

    Attributes:
        terms: a row for each example.
        value: the metric, from the sum of rows.
    """

    terms: Float[np.ndarray, "examples terms"]
    value: Callable[[Float[np.ndarray, " terms"]], float]


def terms_of(metric: Score, run: Run) -> Terms | None:
    """What each example adds to the metric; None: the run has no answers, or the metric is no function of sums."""
    if not run.answers:
        return None
    if metric.name == "bleu":
        if "task.bleu_tokenizer" not in run.settings:
            return None
        try:
            score = make_bleu(str(run.settings["task.bleu_tokenizer"]))
        except ValueError:  # was there where it was trained
            return None
        pairs = [(str(answer["output"]), str(answer["reference"])) for answer in run.answers]
        outputs, references = ([pair[side] for pair in pairs] for side in (0, 1))
        rows = score._extract_corpus_statistics(outputs, [references])
        return Terms(np.array(rows, float), lambda sums: float(score._compute_score_from_stats(list(sums)).score))
    try:
        columns = _ratio(metric, run)
    except KeyError:  # answers of a version that did not keep these numbers
        return None
    return None if columns is None else Terms(np.array(columns, float), _quotient)


def _quotient(sums: Float[np.ndarray, "2"]) -> float:
    """0 of 0 is 0, as F1 is of a text without entities."""
    return float(sums[0] / sums[1]) if sums[1] else 0.0


def _ratio(metric: Score, run: Run) -> list[tuple[float, float]] | None:
    """Of each example the two numbers, the quotient of whose sums is the metric."""
    own = next(score for score in run.task_facts.scores if score.name == metric.name)
    if not own.numerator:
        return None

    def weighted(answer: Mapping[str, object], weights: Mapping[str, float]) -> float:
        right = {"right": float(answer["output"] == answer["reference"])} if "right" in weights else {}
        numbers = {name: value for name, value in answer.items() if isinstance(value, int | float)}
        return sum(weight * {**numbers, **right}[name] for name, weight in weights.items())

    return [
        (weighted(answer, own.numerator), weighted(answer, own.denominator) if own.denominator else 1.0)
        for answer in run.answers
    ]


def scored_by(metric: Score, run: Run) -> float | None:
    """The denominator of a metric, over the whole test; None: the run has no answers that say it."""
    try:
        columns = _ratio(metric, run)
    except KeyError:
        return None
    return sum(denominator for _, denominator in columns) if columns else None


def are_paired(runs: Sequence[Run]) -> bool:
    """Whether the answers of all runs are to the same examples, in the same order."""
    keys = ("index", "input", "reference", "continuation_bytes")
    asked = [[[answer.get(key) for key in keys] for answer in run.answers] for run in runs]
    return bool(asked[0]) and all(of_one == asked[0] for of_one in asked)


def draws(num_examples: int) -> list[Int[np.ndarray, " examples"]]:
    """How often each example is in each draw, with replacement, of as many examples; the same for everyone.

    Args:
        num_examples: of the test set.
    """
    random = np.random.default_rng(SEED)
    even = np.full(num_examples, 1 / num_examples)
    return [random.multinomial(num_examples, even) for _ in range(NUM_RESAMPLES)]


def paired_bootstrap(first: Sequence[Terms], second: Sequence[Terms]) -> Paired:
    """The difference of the mean values of two groups of runs on the same examples.

    Args:
        first: the runs of one, a seed each.
        second: the runs of the other.
    """

    def difference(counts: Float[np.ndarray, " examples"]) -> float:
        means = [float(np.mean([t.value(counts @ t.terms) for t in of_one])) for of_one in (first, second)]
        return means[0] - means[1]

    num_examples = len(first[0].terms)
    observed = difference(np.ones(num_examples))
    drawn = np.array([difference(counts.astype(float)) for counts in draws(num_examples)])
    low, high = np.percentile(drawn, [2.5, 97.5])
    as_far = np.abs(drawn - drawn.mean()) >= abs(observed)
    return Paired(observed, float(low), float(high), float((as_far.sum() + 1) / (NUM_RESAMPLES + 1)))
