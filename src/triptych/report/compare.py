"""Compares runs from their directories: a table on the terminal, an HTML page, and the same content as JSON.

Tested by tests/report/page/test_render.py.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from triptych.report.console_table import print_tables
from triptych.report.page.charts import Plot
from triptych.report.page.pair_table import read_reference, tabulate_pairs
from triptych.report.page.render import Panel, render_page
from triptych.report.read_records import RunSet, find_runs
from triptych.report.statistics.audit import audit
from triptych.report.statistics.groups import Group, group_runs
from triptych.report.statistics.standings import compare_pairs, note_test_noise, summarize_configurations
from triptych.report.statistics.verdicts import judge

__all__ = ["compare", "compare_runs"]


def compare(
    directories: Sequence[Path],
    output: Path,
    plots: Sequence[Plot] = (),
    by: Sequence[str] = (),
    tuned: Sequence[str] = (),
    reference: Path | None = None,
) -> None:
    """Compare the runs at or below some directories.

    Writes the page and its content as JSON (``report.html``, ``report.comparison.json``), and prints the table. Runs
    that cannot be read are left out and listed.

    Args:
        directories: run directories, or parents of them.
        output: the page to write; its folder is created if needed.
        plots: plots to add to the page.
        by: keys of the compared settings, such as ``block/attention``; empty: ``model``, or the only one that varies.
        tuned: keys of settings that are tuned, not compared.
        reference: published accuracies on minimal pairs; see ``read_reference``. None: none.
    """
    known = {} if reference is None else read_reference(reference)
    compare_runs(find_runs(directories, output.parent), output, plots=plots, by=by, tuned=tuned, reference=known)


def compare_runs(
    found: RunSet,
    output: Path,
    question: str = "",
    findings: Sequence[Panel] = (),
    plots: Sequence[Plot] = (),
    by: Sequence[str] = (),
    tuned: Sequence[str] = (),
    answer: str = "",
    reference: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Compare runs that were already read.

    Args:
        found: their directories are relative to the folder of the page.
        question: of a study, at the top of the page, with its answer.
        findings: of the study, in place of a verdict per task.
        reference: see ``read_reference``.
    """
    groups = group_runs(found.runs, found.untested, found.pruned, by, tuned)
    audits = [audit(group) for group in groups]
    standings = [summarize_configurations(group) for group in groups]
    duels = [compare_pairs(group) for group in groups]
    verdicts = [
        None if findings else note_test_noise(group, judge(group), pairs)
        for group, pairs in zip(groups, duels, strict=True)
    ]
    pairs = tabulate_pairs(groups, output.parent, reference or {})
    record = {
        "runs": [{**run.summary, "directory": run.directory} for run in found.runs],
        "verdicts": [asdict(verdict) for verdict in verdicts if verdict],
        "configurations": _list_rows(groups, standings),
        "pairwise": _list_rows(groups, duels),
        "audit": [asdict(difference) for differences in audits for difference in differences],
        "unfinished": found.unfinished,
        "damaged": found.damaged,
        **({"pairs": [asdict(table) for table in pairs]} if pairs else {}),
    }
    page = render_page(groups, verdicts, audits, standings, duels, found, plots, question, findings, answer, pairs)
    output.parent.mkdir(parents=True, exist_ok=True)
    content = output.with_suffix(".comparison.json")  # no file of a run has this name
    content.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    output.write_text(page, encoding="utf-8", errors="replace")
    print_tables(groups, verdicts, audits, found, Console())
    print(f"{output}\n{content}")


def _list_rows(groups: Sequence[Group], found: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The dataclasses that were found in each group, as plain data."""
    return [
        {"task": group.task, "data": group.data, "metric": group.metric.key, **finite(asdict(row))}
        for group, rows in zip(groups, found, strict=True)
        for row in rows
    ]


def finite(value: Any) -> Any:
    """Plain data with null for non-finite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(of_one) for key, of_one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
