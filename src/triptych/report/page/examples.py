"""Predictions of the architectures for single test examples: where they differ, which are hard, the effect of
length.

Tested by tests/report/statistics/test_standings.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from triptych.report.read_records import RecordedRun
from triptych.report.statistics.bootstrap import are_paired, terms_of
from triptych.report.statistics.groups import ComparedConfig, Group

INPUT_WORDS = "input_words"
NUM_BINS = 6
"""Number of bins by input length in words."""

NUM_BINS_OF_DIFFICULTY = 12
LEAST_IN_BIN = 15
"""Minimum number of examples in a bin; fewer would mostly show noise."""


@dataclass(frozen=True, slots=True)
class ShownExample:
    """One example with the predictions of all architectures.

    Attributes:
        input: the model input.
        reference: the correct output; empty if there is none.
        picture: URL of a picture of the input; empty if its text is shown.
        reference_picture: URL of a picture of the reference.
        outputs: by architecture.
        pictures: URLs of pictures of the outputs, by architecture.
    """

    input: str
    reference: str
    picture: str = ""
    reference_picture: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bin:
    """Test examples of similar difficulty.

    Attributes:
        low: the least difficulty.
        high: the greatest.
        count: number of examples.
        values: of the metric, one per seed.
    """

    low: int
    high: int
    count: int
    values: tuple[float, ...]

    @property
    def label(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def choose_runs(group: Group) -> dict[str, RecordedRun]:
    """The first seed of each level's configuration that is best on the validation set."""
    return {name: contender.runs[0] for name, contender in group.chosen.items()}


def find_telling_examples(group: Group, count: int = 4) -> dict[str, list[ShownExample]]:
    """The most informative examples: where the quality of the predictions differs most, the worst for all, and the best
    for all. Quality is the example's contribution to the metric; for translations, its chrF.

    Args:
        count: of each kind.

    Returns:
        the examples by title; empty if the runs have no predictions for the same examples.
    """
    runs = choose_runs(group)
    if not are_paired(list(runs.values())) or "input" not in next(iter(runs.values())).predictions[0]:
        return {}
    qualities = {name: _rate_answers(group, run) for name, run in runs.items()}
    if any(quality is None or not np.isfinite(quality).all() for quality in qualities.values()):
        return {}
    table = np.array(list(qualities.values()))  # architectures, examples
    spread, mean = table.max(0) - table.min(0), table.mean(0)
    orders: dict[str, Sequence[int]] = {
        "Where they differ most": [i for i in np.argsort(-spread, kind="stable").tolist() if spread[i] > 0],
        "Hardest for all": np.argsort(mean, kind="stable").tolist(),
        "Best for all": np.argsort(-mean, kind="stable").tolist(),
    }
    seen: set[int] = set()
    for title, order in orders.items():  # each example once
        orders[title] = [i for i in order if i not in seen][:count]
        seen.update(orders[title])
    return {title: [_collect_outputs(group, runs, table[:, i], i) for i in order] for title, order in orders.items()}


def list_axes(group: Group) -> list[str]:
    """Ways to order the test examples: the corpus's measures of difficulty, otherwise the number of words of the input.
    Empty if the runs have no predictions for the same examples."""
    if not are_paired(group.runs):
        return []
    first = group.runs[0].predictions[0]
    return list(first.get("difficulty", ())) or [INPUT_WORDS] * (INPUT_WORDS in first)


def score_by(group: Group, axis: str) -> list[tuple[ComparedConfig, list[Bin]]]:
    """The metric of each configuration on examples of similar difficulty.

    Args:
        axis: one of ``list_axes``.

    Returns:
        The same bins for all, the easiest first; empty if all examples are alike, or if a run's metric is not a
            function of sums over examples.
    """
    answers = group.runs[0].predictions
    sizes = np.array([answer[axis] if axis == INPUT_WORDS else answer["difficulty"][axis] for answer in answers])
    edges = np.unique(sizes)  # upper ends of the bins
    num_bins = NUM_BINS if axis == INPUT_WORDS else NUM_BINS_OF_DIFFICULTY
    if len(edges) > num_bins:
        quantiles = np.quantile(sizes, np.linspace(0, 1, num_bins + 1)[1:], method="higher")
        edges = np.unique([*quantiles, most_in_training(group, axis)])  # no bin crosses the end of the training range
    numbers = np.searchsorted(edges, sizes)
    members = [found for number in range(len(edges)) if (found := numbers == number).sum() >= LEAST_IN_BIN]
    scored = []
    for contender in group.contenders:
        terms = [found for run in contender.runs if (found := terms_of(group.metric, run)) is not None]
        if len(terms) < len(contender.runs) or len(members) < 2 or not all(np.isfinite(t.terms).all() for t in terms):
            return []
        bins = []
        for of_bin in members:
            inside, values = sizes[of_bin], tuple(t.value(t.terms[of_bin].sum(0)) for t in terms)
            bins.append(Bin(int(inside.min()), int(inside.max()), len(inside), values))
        scored.append((contender, bins))
    return scored


def most_in_training(group: Group, axis: str) -> float:
    """The largest value of an axis in training; infinity if it is unknown, or differs between runs."""
    ranges = [(run.train_difficulty_range or {}).get(axis) for run in group.runs]
    known = [most for _, most in filter(None, ranges)]
    return known[0] if len(known) == len(ranges) and len(set(known)) == 1 else math.inf


def _rate_answers(group: Group, run: RecordedRun) -> Float[np.ndarray, " examples"] | None:
    """A number per prediction; higher is better."""
    if by := run.task_info.ranked_by:
        return np.array([answer.get(by, math.nan) for answer in run.predictions])
    terms = terms_of(group.metric, run)
    if terms is None:
        return None
    numerators, denominators = terms.terms.T
    best = float(group.metric.higher_is_better)  # of an example with nothing to find and nothing predicted
    values: Float[np.ndarray, " examples"] = np.full(len(numerators), best)
    np.divide(numerators, denominators, out=values, where=denominators > 0)
    return values if group.metric.higher_is_better else -values


def _collect_outputs(
    group: Group, runs: dict[str, RecordedRun], qualities: Float[np.ndarray, " architectures"], index: int
) -> ShownExample:
    first = next(iter(runs.values())).predictions[index]
    outputs = {
        name: str(run.predictions[index].get("output", group.metric.show(abs(float(quality)))))
        for (name, run), quality in zip(runs.items(), qualities, strict=True)
    }
    return ShownExample(str(first["input"]), str(first.get("reference", "")), outputs=outputs)
