"""The heat map of minimal pairs: a row per paradigm, a column per network and method.

Tested by tests/report/page/test_pair_table.py.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from triptych.report.page.document import Cell
from triptych.report.pair_scores import PairScores
from triptych.report.statistics.groups import Group
from triptych.report.statistics.pair_bootstrap import compare_pair_scores
from triptych.storage.run_directory import RunDirectory

CHANCE = 50.0
MAIN_GROUPS = ("overall", "agreement", "permutations")
"""Groups whose differences are tested."""


@dataclass(frozen=True, slots=True)
class PairCell:
    """An accuracy in the heat map.

    Attributes:
        text: in percent, with its standard error.
        color: background, in CSS.
        is_soft: whether it is not above chance, or above the column "unigram" of the reference, by its 95 % interval.
    """

    text: str
    color: str
    is_soft: bool


@dataclass(frozen=True, slots=True)
class PairTable:
    """The heat map of one table of pairs.

    Attributes:
        name: name of the table of pairs.
        heads: names of the columns.
        groups: a row per group of paradigms: its name and its cells.
        paradigms: the same per paradigm.
        differences: between each two networks, with bootstrap intervals.
        floor: what the accuracies should exceed.
    """

    name: str
    heads: list[str]
    groups: list[tuple[str, list[PairCell]]]
    paradigms: list[tuple[str, list[PairCell]]]
    differences: list[list[Cell]]
    floor: str


def read_reference(path: Path) -> dict[str, dict[str, float]]:
    """Reads published accuracies: a CSV file with a row per paradigm, its name in the column UID, and a column in
    percent per model. Other columns of text are ignored.

    Returns:
        By model, the accuracy of each paradigm.

    Raises:
        ValueError: the file has no such columns.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    if not rows or "UID" not in rows[0]:
        raise ValueError(f"{path}: no column UID; expected a row per paradigm with its name in the column UID")
    models = [name for name in rows[0] if name and all(_is_number(row[name]) for row in rows)]
    if not models:
        raise ValueError(f"{path}: no column of numbers; expected an accuracy in percent per model")
    return {name: {row["UID"]: float(row[name]) for row in rows} for name in models}


def _is_number(text: str | None) -> bool:
    try:
        return math.isfinite(float(text or ""))
    except ValueError:
        return False


def tabulate_pairs(
    groups: Sequence[Group], folder: Path, reference: Mapping[str, Mapping[str, float]]
) -> list[PairTable]:
    """Returns a heat map for each table of minimal pairs that runs have scored.

    Args:
        groups: the runs.
        folder: folder of the page, which the directories of runs are relative to.
        reference: see ``read_reference``.
    """
    columns_of: dict[str, dict[str, list[PairScores]]] = {}
    for table, column, scores in _columns(groups, folder):
        columns_of.setdefault(table, {})[column] = scores
    return [_tabulate(table, columns, reference) for table, columns in sorted(columns_of.items())]


def _tabulate(
    name: str, columns: Mapping[str, Sequence[PairScores]], reference: Mapping[str, Mapping[str, float]]
) -> PairTable:
    first = next(iter(columns.values()))[0]
    of_group = first.groups()
    rows = {**of_group, **{paradigm: [paradigm] for paradigm in first.paradigms}}
    cells = {row: [*_cells(paradigms, columns, reference)] for row, paradigms in rows.items()}
    return PairTable(
        name,
        [*columns, *reference],
        [(f"{group} ({len(paradigms)})", cells[group]) for group, paradigms in of_group.items()],
        [(paradigm, cells[paradigm]) for paradigm in first.paradigms],
        [*_differences(columns, of_group)],
        "the unigram model" if "unigram" in reference else "chance",
    )


def _columns(groups: Sequence[Group], folder: Path) -> Iterator[tuple[str, str, list[PairScores]]]:
    """The table, the configuration with its method, and the scores, one per seed."""
    for group in groups:
        for contender in group.contenders:
            paths: dict[str, list[Path]] = {}
            for run in contender.runs:
                directory = folder.joinpath(run.directory).resolve()  # the folder may not exist yet
                for path in sorted(RunDirectory(directory).minimal_pairs.glob("*.tsv")):
                    paths.setdefault(path.stem, []).append(path)
            for name, of_seeds in paths.items():
                table, _, method = name.rpartition(".")
                yield table, f"{contender.name}, {method.replace('_', ' ')}", [*map(PairScores.read, of_seeds)]


def _cells(
    paradigms: Sequence[str],
    columns: Mapping[str, Sequence[PairScores]],
    reference: Mapping[str, Mapping[str, float]],
) -> Iterator[PairCell]:
    floor = _mean_of(reference["unigram"], paradigms) if "unigram" in reference else CHANCE
    for scores in columns.values():
        known = [[name for name in paradigms if name in of_seed.paradigms] for of_seed in scores]
        found = [of_seed.accuracy(names) for of_seed, names in zip(scores, known, strict=True)]
        value = fmean(accuracy.value for accuracy in found)
        error = math.hypot(*(accuracy.error for accuracy in found)) / len(found)
        yield PairCell(f"{value:.1f} ± {error:.1f}", _color(value), is_soft=not value - 1.96 * error > floor)
    for model in reference.values():
        value = _mean_of(model, paradigms)
        yield PairCell("" if math.isnan(value) else f"{value:.1f}", _color(value), is_soft=False)


def _mean_of(model: Mapping[str, float], paradigms: Sequence[str]) -> float:
    known = [model[name] for name in paradigms if name in model]
    return fmean(known) if known else math.nan


def _color(value: float) -> str:
    """Blue above chance, orange below it."""
    if math.isnan(value):
        return "transparent"
    strength = min(abs(value - CHANCE) / CHANCE, 1.0)
    return f"rgba({'0,114,178' if value >= CHANCE else '213,94,0'},{0.75 * strength:.2f})"


def _differences(
    columns: Mapping[str, Sequence[PairScores]], of_group: Mapping[str, Sequence[str]]
) -> Iterator[list[Cell]]:
    for (first, ours), (second, theirs) in combinations(columns.items(), 2):
        cells = [Cell("Difference", "words", f"{first} minus {second}")]
        for name in MAIN_GROUPS:
            found = compare_pair_scores(ours, theirs, of_group[name])
            text = "other pairs"
            if found is not None:
                text = f"{found.difference:+.1f} ({found.low:+.1f} to {found.high:+.1f})"
            cells.append(Cell(f"{name}, points (95 %)", "number", text))
        yield cells
