"""How long each file of tests takes: ``make test`` runs the longest first, so that no worker is left alone with it, and
``make test DURATIONS=1`` measures them again, on an idle machine."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".json")
LEAST = 2
"""Seconds; files that take less come last, in no order of their own."""


class Durations:
    """Adds up the seconds of the tests of each file, and writes them."""

    def __init__(self) -> None:
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        """Writes them."""
        rows = {name: round(seconds) for name, seconds in self.seconds.most_common() if seconds >= LEAST}
        FILE.write_text(json.dumps(rows, indent=0) + "\n")


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sorts tests by the seconds of their files, and leaves the order in a file."""
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called in each process; what ``make quick`` or a person chooses keeps its order."""
    if os.environ.get("TRIPTYCH_DURATIONS") and FILE.exists():
        longest_first(items, json.loads(FILE.read_text()))


def pytest_configure(config: pytest.Config) -> None:
    """One process writes what all report."""
    runs_here = not (hasattr(config, "workerinput") or config.option.collectonly)
    if os.environ.get("TRIPTYCH_DURATIONS") == "write" and runs_here:
        config.pluginmanager.register(Durations())
