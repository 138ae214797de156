"""Scaling laws of finished runs, or of a table of models: on the terminal, as a page, and as JSON.

Tested by tests/report/statistics/test_scaling.py.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triptych.config import counted, nearest
from triptych.report.compare import finite
from triptych.report.page.scaling_charts import count_models, render_scaling, scaling_summary, tabulate_exponents
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import RecordedRun, RunSet, find_runs
from triptych.report.statistics.audit import Difference, audit
from triptych.report.statistics.factors import TUNED_KEYS
from triptych.report.statistics.groups import ComparedConfig, Group, group_runs
from triptych.report.statistics.scaling import Contrast, Exponent, Ladder, Point, contrast, fit_ladder
from triptych.storage.run_directory import RECORD
from triptych.tasks.metric_specs import LOSS, MetricSpec

__all__ = ["scaling"]

COLUMNS = ("params", "tokens", "train_flops", "loss", "architecture", "seed")
"""Columns of a table. The last two are optional, and so is either tokens or train_flops: C = 6 N D."""
BY_DESIGN = ("params", "train_flops", "steps")
"""Differences that every scaling ladder has."""


@dataclass(frozen=True, slots=True)
class ScalingInput:
    """The models to fit laws to.

    Attributes:
        title: task and corpus, or the table.
        metric: the loss.
        points: the models, by architecture.
        irreducible: the known lower bound of the loss, by architecture.
        group: the runs; None for a table.
        left_out: models left out, and why.
    """

    title: str
    metric: MetricSpec
    points: tuple[Point, ...]
    irreducible: Mapping[str, float]
    group: Group | None
    left_out: tuple[str, ...]


def scaling(
    paths: Sequence[Path],
    output: Path,
    *,
    columns: Mapping[str, str] | None = None,
    leave_out: int = 0,
    delta: float | None = None,
) -> None:
    """Fits scaling laws to the runs at or below some directories, or to a table.

    Writes the page and its content as JSON (``scaling.html``, ``scaling.json``), and prints the exponents.

    Args:
        paths: run directories, or parents of them; or one CSV file.
        output: the page to write; its folder is created if needed.
        columns: of a table: its column heads that differ from ``COLUMNS``.
        leave_out: number of models with the highest losses to leave out.
        delta: the width of Huber's function; None: least squares.
    """
    if any(path.is_file() for path in paths):
        if len(paths) > 1:
            raise ValueError(f"{paths[0]} and {paths[1]}: expected directories of runs, or one CSV file")
        study = read_table(paths[0], columns or {})
    else:
        study = read_ladder(find_runs(paths, output.parent))
    study = without_highest(study, leave_out)
    check_losses(study)
    ladders = [
        fit_ladder(list(points), study.irreducible.get(name), delta, seed)
        for seed, (name, points) in enumerate(groupby(study.points, key=lambda point: point.architecture))
    ]
    contrasts = contrast(ladders)
    text = scaling_summary(study.metric, ladders, contrasts)
    differences = [] if study.group is None else [d for d in audit(study.group) if d.field not in BY_DESIGN]
    record = make_record(study, ladders, contrasts, text, differences)
    page = render_scaling(study.title, study.metric, text, ladders, contrasts, differences, study.group, study.left_out)
    output.parent.mkdir(parents=True, exist_ok=True)
    content = output.with_suffix(".json")
    content.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    output.write_text(page, encoding="utf-8", errors="replace")
    print_ladders(study, ladders, text, differences, Console())
    print(f"{output}\n{content}")


def read_ladder(found: RunSet) -> ScalingInput:
    """The runs of one task on one corpus, by their comparison metric, or by the loss if higher is better for that
    metric."""
    groups = group_runs(found.runs, found.untested, found.pruned)
    if not groups:
        raise ValueError("no tested run found; expected finished runs of several sizes and budgets")
    if len(groups) > 1:
        named = ", ".join(f"{group.task} on {group.data}" for group in groups)
        raise ValueError(f"runs of several tasks or corpora ({named}); expected one task on one corpus")
    group = groups[0]
    for field, noun in (("data_sha256", "data"), ("tokenizer_sha256", "tokenizer")):
        kinds = {getattr(run, field): run.directory for run in reversed(group.runs)}
        if len(kinds) > 1:
            first, second = sorted(kinds.values())[:2]
            raise ValueError(f"{first} and {second}: their {field} differ; expected runs of one {noun}")
    if not group.counts_alike:
        kinds = {run.train_flops_of: run.directory for run in reversed(group.runs)}
        first, second = sorted(kinds.values())[:2]
        raise ValueError(
            f"{first} and {second}: train_flops includes the optimizer in only one of them; expected runs that count "
            "FLOPs alike"
        )
    if group.scored_differently:
        raise ValueError(f"the runs are not comparable: {group.scored_differently}")
    group = replace(group, metric=replace(group.metric, note=group.note))
    if group.metric.higher_is_better:
        group = replace(group, metric=LOSS)
        for run in group.runs:
            if LOSS.key not in run.metrics:
                raise ValueError(f"{run.directory}/{RECORD}: key metrics has no {LOSS.key}, expected in each run")
    left_out = [f"{name}: not finished (no {RECORD})" for name in found.unfinished]
    left_out += [f"{name}: damaged" for name in found.damaged]
    best = choose_runs(group)
    runs = [run for run in best if math.isfinite(group.value(run))]
    left_out += [f"{run.directory}: its loss is not finite" for run in best if run not in runs]
    if others := len(group.runs) - len(best):
        left_out.append(f"{counted(others, 'run')} whose tuned settings are not the best on the validation set")
    known = {ARCHITECTURES[run.architecture].word: group.optimum(run) for run in runs}
    for run in runs:  # a corpus's entropy may exclude what large models learn (dates: the calendar)
        name = ARCHITECTURES[run.architecture].word
        if (floor := known[name]) is not None and group.value(run) <= floor:
            left_out.append(
                f"{floor:.5g}, the {group.metric.optimum_name or 'minimum'} of this corpus, as the irreducible loss of "
                f"{name}: {run.directory} is below it ({group.value(run):.5g})"
            )
            known[name] = None
    return ScalingInput(
        title=f"{group.runs[0].task_info.title} · {group.data}",
        metric=group.metric,
        points=tuple(point_of(run, group.value(run)) for run in runs),
        irreducible={name: value for name, value in known.items() if value is not None},
        group=group,
        left_out=tuple(left_out),
    )


def choose_runs(group: Group) -> list[RecordedRun]:
    """The runs of each architecture, size and budget; if it was trained with several values of settings that are tuned,
    such as the learning rate, those of the best ones on the validation set."""
    cells: dict[object, list[ComparedConfig]] = {}
    for one in group.contenders:
        run = one.runs[0]
        free = (*TUNED_KEYS, *((run.match or {}).get("solved") or {}))  # a step limit is solved for each seed
        fixed = sorted((key, str(x)) for key, x in run.settings.items() if not key.startswith(free))
        cells.setdefault((one.level, run.params, str(fixed) if fixed else run.train_flops), []).append(one)
    return [run for found in cells.values() for run in group.best(found).runs]


def point_of(run: RecordedRun, loss: float) -> Point:
    name = ARCHITECTURES[run.architecture].word
    return Point(run.directory, name, run.seed, run.params, run.train_tokens, run.train_flops, loss)


def read_table(path: Path, columns: Mapping[str, str]) -> ScalingInput:
    """Reads a CSV file with one model per row and the columns of ``COLUMNS``.

    Args:
        columns: the heads of columns with other names.
    """
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"--column {name}=...: expected one of {', '.join(COLUMNS)}{nearest(name, COLUMNS)}")
    heads = {name: columns.get(name, name) for name in COLUMNS}
    points = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader.fieldnames or ())
        needed = [name for name in ("params", "loss", *columns) if heads[name] not in found]
        if not {heads["tokens"], heads["train_flops"]} & {*found}:
            needed.append("train_flops")
        if needed:
            raise ValueError(
                f"{path}: no column {heads[needed[0]]}, found {', '.join(found)}; set it with --column {needed[0]}=HEAD"
            )

        def number(row: Mapping[str, str | None], name: str) -> float:
            try:
                value = float(row[heads[name]] or "")
            except ValueError:
                value = math.nan
            if not 0 < value < math.inf:
                where = f"line {reader.line_num}, column {heads[name]}"
                raise ValueError(f"{path}: {where} is {row[heads[name]]!r}, expected a number above 0")
            return value

        for row in reader:
            size, loss = number(row, "params"), number(row, "loss")
            known = {name: number(row, name) for name in ("tokens", "train_flops") if heads[name] in found}
            tokens = known.get("tokens", known.get("train_flops", 0.0) / (6 * size))
            flops = known.get("train_flops", 6 * size * tokens)
            name = row.get(heads["architecture"]) or "models"
            seed = int(number(row, "seed")) if heads["seed"] in found else None
            word = ARCHITECTURES[name].word if name in ARCHITECTURES else name
            points.append(Point(f"line {reader.line_num}", word, seed, size, tokens, flops, loss))
    points.sort(key=lambda point: point.architecture)
    return ScalingInput(path.name, LOSS, tuple(points), {}, None, ())


def without_highest(study: ScalingInput, count: int) -> ScalingInput:
    """The study without the ``count`` models of the highest losses, which are listed as left out."""
    highest = sorted(study.points, key=lambda point: -point.loss)[:count]
    kept = tuple(point for point in study.points if point not in highest)
    named = tuple(f"{point.name}: one of the highest losses, {point.loss:.4g}" for point in highest)
    return replace(study, points=kept, left_out=study.left_out + named)


def check_losses(study: ScalingInput) -> None:
    """Raises an error for impossible losses."""
    if not study.points:
        raise ValueError(f"{study.title}: no model is left")
    for point in study.points:
        if point.loss <= 0:
            raise ValueError(f"{point.name}: {study.metric.title} {point.loss:.5g}; expected more than 0")


def make_record(
    study: ScalingInput,
    ladders: Sequence[Ladder],
    contrasts: Sequence[Contrast],
    text: str,
    differences: Sequence[Difference],
) -> dict[str, Any]:
    """The content of the page as plain data."""

    def interval(exponent: Exponent) -> dict[str, Any]:
        return {key: x if math.isfinite(x) else "unbounded" for key, x in asdict(exponent).items()}

    def law(fit: Any) -> dict[str, Any]:
        return {
            "names": fit.names,
            "coefficients": fit.coefficients,
            "exponents": fit.exponents,
            "irreducible": fit.irreducible,
            "irreducible_is_known": fit.is_known,
            "huber_delta": fit.delta,
            "r_squared": fit.r_squared,
        }

    return {
        "title": study.title,
        "metric": study.metric.key,
        "text": text,
        "points": [asdict(point) for point in study.points],
        "laws": [
            {
                "architecture": ladder.architecture,
                **law(ladder.law),
                "num_cells": len(ladder.cells),
                "num_runs": len(ladder.points),
                "doubt": ladder.doubt,
                "intervals": {name: interval(exponent) for name, exponent in ladder.exponents.items()},
                "alone": {name: law(fit) for name, fit in ladder.alone.items()},
                "iso_flops": [
                    {key: value for key, value in finite(asdict(budget)).items() if key != "points"}
                    for budget in ladder.iso_flops
                ],
            }
            for ladder in ladders
        ],
        "differences": [asdict(found) | {"difference": interval(found.difference)} for found in contrasts],
        "audit": [asdict(difference) for difference in differences],
        "left_out": study.left_out,
    }


def print_ladders(
    study: ScalingInput, ladders: Sequence[Ladder], text: str, differences: Sequence[Difference], console: Console
) -> None:
    """Prints the exponents of each architecture, the summary, and the models left out."""
    title = Text(f"{study.title}: {study.metric.title} of {count_models(ladders)}")
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = tabulate_exponents(ladders)
    for cell in rows[0]:
        table.add_column(cell.head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.text) for cell in row))
    console.print(table)
    console.print(Text(text, style="bold"))
    for difference in differences:
        console.print(Text(f"differs: {difference.text}", style="yellow"))
    for line in study.left_out:
        console.print(Text(f"Left out: {line}", style="yellow"))
