"""The comparison of runs, from their directories alone: a table on the terminal, an HTML page, and the same as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from triptych.report.page.charts import Plot
from triptych.report.page.render import Panel, render_page
from triptych.report.read_records import RunSet, find_runs
from triptych.report.statistics.standings import duels, standings
from triptych.report.statistics.verdicts import audit, group_runs, judge
from triptych.report.table import print_tables

__all__ = ["compare", "compare_runs"]


def compare(directories: Sequence[Path], output: Path, plots: Sequence[Plot] = ()) -> None:
    """Compare the runs at or below some directories.

    Writes the page, and its content as JSON beside it (``report.html``, ``report.comparison.json``), and prints the
    table. Runs that cannot be read are left out, and named.

    Args:
        directories: run directories, or parents of them.
        output: the page to write; its folder is made where it is missing.
        plots: for the page, besides those that it has.
    """
    compare_runs(find_runs(directories, output.parent), output, plots=plots)


def compare_runs(
    found: RunSet, output: Path, question: str = "", findings: Sequence[Panel] = (), plots: Sequence[Plot] = ()
) -> None:
    """The same of runs that were read.

    Args:
        found: their directories are relative to the folder of the page.
        question: of a study, which the page begins with.
        findings: its answers.
    """
    groups = group_runs(found.runs, found.untested, found.pruned)
    verdicts = [judge(group) for group in groups]
    audits = [audit(group) for group in groups]
    standing, dueling = [standings(group) for group in groups], [duels(group) for group in groups]
    record = {
        "runs": [{**run.summary, "directory": run.directory} for run in found.runs],
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "standings": [
            {"task": group.task, "data": group.data, "metric": group.metric.key, **finite(asdict(found))}
            for group, of_one in zip(groups, standing, strict=True)
            for found in of_one
        ],
        "duels": [
            {"task": group.task, "data": group.data, "metric": group.metric.key, **finite(asdict(found))}
            for group, of_one in zip(groups, dueling, strict=True)
            for found in of_one
        ],
        "audit": [asdict(difference) for differences in audits for difference in differences],
        "unfinished": found.unfinished,
        "damaged": found.damaged,
    }
    page = render_page(groups, verdicts, audits, standing, dueling, found, plots, question, findings)
    output.parent.mkdir(parents=True, exist_ok=True)
    content = output.with_suffix(".comparison.json")  # no name that a file of a run has
    content.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    output.write_text(page, encoding="utf-8", errors="replace")
    print_tables(groups, verdicts, audits, found, Console())
    print(f"{output}\n{content}")


def finite(record: dict[str, Any]) -> dict[str, Any]:
    """A flat record with null in place of the numbers that are not finite, as JSON has none."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }
