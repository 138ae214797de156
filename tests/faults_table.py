"""Writes the table of docs/fault_injection.md after `make faults`: what was tried, how often, and what came out."""

import os
from pathlib import Path

import pytest

CATALOGUE = {
    1: "SIGKILL at random steps, resumed each time",
    2: "resume of a resume across an epoch boundary",
    3: "SIGTERM, SIGINT, SIGUSR1, SIGHUP to the whole process group",
    4: "the scheduler's warning (SIGUSR1), two ranks under a real Slurm",
    5: "SIGKILL while a checkpoint is saved, TMPDIR elsewhere",
    6: "checkpoint cut at 0, 10, 50, 99 %",
    7: "single flipped bits",
    8: "full disk, limit of the file size",
    9: "SIGKILL of either of two ranks",
    10: "a rank hangs",
    11: "SIGTERM to rank 1 only",
    12: "resume on 1 process instead of 2, and on 2 instead of 1",
    13: "a loss that is not finite",
    14: "W&B out of reach at the start, lost in the middle",
    15: "two jobs in one run directory",
    16: "one of four sweep jobs fails",
    17: "an empty dataset, or one smaller than a batch",
    18: "unaligned files, not UTF-8, unknown label, id beyond the vocabulary, over-long line",
    19: "a row of padding only",
    20: "typo, wrong type, heads that do not divide the width, nan, 0, +x=1",
    21: "a pickle payload in a checkpoint",
    22: "a hostile _target_ in a configuration",
    23: "secrets in the environment, configuration, command, output, git remote",
    24: "supply chain",
}


class Table:
    """Collects the outcomes, and writes the table of docs/fault_injection.md."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reports: dict[int, list[pytest.TestReport]] = {number: [] for number in CATALOGUE}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        if report.when == "call" or not report.passed:
            for name, value in report.user_properties:
                if name == "fault":
                    self.reports[int(str(value))].append(report)

    def pytest_sessionfinish(self) -> None:
        """Writes it."""
        lines = ["| # | fault | tried | outcome | seconds |", "|---|---|---|---|---|"]
        for number, reports in self.reports.items():
            counts = [str(value) for report in reports for name, value in report.user_properties if name == "count"]
            passed = sum(report.passed for report in reports)
            tried = "; ".join([f"{len(reports)} test" + "s" * (len(reports) != 1), *counts])
            outcome = (
                "not run" if not reports else "passed" if passed == len(reports) else f"{passed} of {len(reports)}"
            )
            seconds = sum(report.duration for report in reports)
            lines.append(f"| {number} | {CATALOGUE[number]} | {tried} | {outcome} | {seconds:.0f} |")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("\n".join(lines) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """One process collects what all report."""
    runs_here = not (hasattr(config, "workerinput") or config.option.collectonly)
    if (file := os.environ.get("TRIPTYCH_FAULTS_TABLE")) and runs_here:
        config.pluginmanager.register(Table(Path(file)))
