"""What the architectures make of single test examples: where they differ, what is hard, what length does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from triptych.report.read_records import Run
from triptych.report.statistics.bootstrap import are_paired, terms_of
from triptych.report.statistics.verdicts import Group

NUM_BINS = 6
LEAST_IN_BIN = 15
"""Examples without which a bin of lengths would show chance."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example with the answers of all architectures.

    Attributes:
        input: what the models read.
        reference: the right answer; empty where there is none.
        outputs: by architecture.
    """

    input: str
    reference: str
    outputs: dict[str, str]


def choose_runs(group: Group) -> dict[str, Run]:
    """By architecture the first seed of the configuration that is best on the validation set."""
    return {name: group.best(contenders).runs[0] for name, contenders in group.by_architecture().items()}


def find_telling_examples(group: Group, count: int = 4) -> dict[str, list[Example]]:
    """The examples that say most: where the qualities of the answers are furthest apart, the worst for all, and the
    best for all. The quality is what the example adds to the metric; of a translation its chrF.

    Args:
        count: of each kind.

    Returns:
        the examples under a title; none where the runs have no answers to the same examples.
    """
    runs = choose_runs(group)
    if not are_paired(list(runs.values())) or "input" not in next(iter(runs.values())).answers[0]:
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
    return {title: [_collect_outputs(group, runs, qualities, i) for i in order] for title, order in orders.items()}


def score_by_length(group: Group) -> dict[str, list[tuple[str, float, int]]]:
    """The metric on the examples of like length, the mean over seeds.

    Returns:
        by architecture, for each bin: its lengths in words, the value, and its number of examples; none where the runs
        have no answers, or all inputs are of one length.
    """
    chosen = {name: group.best(contenders) for name, contenders in group.by_architecture().items()}
    runs = [run for contender in chosen.values() for run in contender.runs]
    if not are_paired(runs) or "input_words" not in runs[0].answers[0]:
        return {}
    words = np.array([answer["input_words"] for answer in runs[0].answers])
    edges = np.unique(np.quantile(words, np.linspace(0, 1, NUM_BINS + 1)[1:], method="higher"))
    bins = np.searchsorted(edges, words)
    kept = [number for number in range(len(edges)) if (bins == number).sum() >= LEAST_IN_BIN]
    values: dict[str, list[tuple[str, float, int]]] = {}
    for name, contender in chosen.items():
        terms = [found for run in contender.runs if (found := terms_of(group.metric, run)) is not None]
        if len(terms) < len(contender.runs) or len(kept) < 2 or not all(np.isfinite(t.terms).all() for t in terms):
            return {}
        values[name] = [
            (
                _range(words[bins == number]),
                float(np.mean([of_one.value(of_one.terms[bins == number].sum(0)) for of_one in terms])),
                int((bins == number).sum()),
            )
            for number in kept
        ]
    return values


def _range(words: Float[np.ndarray, " examples"]) -> str:
    low, high = int(words.min()), int(words.max())
    return str(low) if low == high else f"{low} to {high}"


def _rate_answers(group: Group, run: Run) -> Float[np.ndarray, " examples"] | None:
    """A number for each answer; higher is better."""
    if by := run.task_facts.ranked_by:
        return np.array([answer.get(by, math.nan) for answer in run.answers])
    terms = terms_of(group.metric, run)
    if terms is None:
        return None
    numerators, denominators = terms.terms.T
    best = float(group.metric.higher_is_better)  # of an example that had nothing to be found, and nothing was
    values: Float[np.ndarray, " examples"] = np.full(len(numerators), best)
    np.divide(numerators, denominators, out=values, where=denominators > 0)
    return values if group.metric.higher_is_better else -values


def _collect_outputs(
    group: Group, runs: dict[str, Run], qualities: dict[str, Float[np.ndarray, " examples"] | None], index: int
) -> Example:
    first = next(iter(runs.values())).answers[index]
    outputs = {}
    for name, run in runs.items():
        quality = qualities[name]
        assert quality is not None
        value = abs(float(quality[index]))
        outputs[name] = str(run.answers[index].get("output", group.metric.show(value)))
    return Example(str(first["input"]), str(first.get("reference", "")), outputs)
