"""Which tests are nightly although nothing in their files says so: nightly_cases.json lists them; new tests run by day.

``make cases`` chooses them again. It runs the tests of ``make test`` with coverage.py, also in the processes that they
start. By day stay: tests of less than ``LONG`` seconds, with the shortest of their cases and those of less than
``SHORT`` seconds; tests that kill mutants; tests marked ``daily``; and of the others so many that every line is still
reached.
"""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import yaml
from coverage import Coverage
from coverage.numbits import numbits_to_nums

FILE = Path(__file__).with_suffix(".json")
TRACES = Path(__file__).parents[1] / "outputs" / "cases"
SECONDS = TRACES / "seconds.json"
SHORT, LONG = 0.5, 3.0
"""Seconds of a case and of a whole test, traced, which takes half again as long."""


def function_of(test: str) -> str:
    """The name of a test without its case."""
    return test.partition("[")[0]


@pytest.hookimpl(tryfirst=True)  # before pytest deselects nightly tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the listed cases."""
    nightly = {name + case for name, cases in json.loads(FILE.read_text()).items() for case in cases}
    for item in items:
        if item.nodeid in nightly and "TRIPTYCH_CASES" not in os.environ:
            item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Lines that this process reaches from now on are those of this test."""
    if (coverage := Coverage.current()) is not None:
        coverage.switch_context(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Lines of fixtures belong to no test."""
    if (coverage := Coverage.current()) is not None:
        coverage.switch_context("")


class Seconds:
    """Writes the seconds of each test that may become nightly."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test."""
        if report.when == "call" and "daily" not in report.keywords:
            self.seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self) -> None:
        """Writes them."""
        SECONDS.write_text(json.dumps(self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    """One process writes what all report."""
    if "TRIPTYCH_CASES" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds())


def read_lines(folder: Path) -> dict[str, set[tuple[str, int]]]:
    """The lines that each test reached, as files and numbers; "": those that fixtures and imports did."""
    found = defaultdict[str, set[tuple[str, int]]](set)
    query = """SELECT context, path, numbits
        FROM line_bits JOIN context ON context.id = context_id JOIN file ON file.id = file_id"""
    for file in folder.glob("lines.*"):
        for test, path, numbits in sqlite3.connect(file).execute(query):
            found[test.removesuffix(" (call)")] |= {(path, number) for number in numbits_to_nums(numbits)}
    return found


def choose_nightly(
    seconds: Mapping[str, float], lines: Mapping[str, Collection[tuple[str, int]]], always: Collection[str]
) -> list[str]:
    """The tests that are not needed by day.

    Args:
        seconds: that each test takes.
        lines: that each test reaches.
        always: tests that run by day.
    """
    cases = defaultdict[str, list[str]](list)
    for test in seconds:
        cases[function_of(test)].append(test)
    optional = {test for test in seconds if seconds[test] >= SHORT} - {*always}
    for tests in cases.values():
        shortest = min(tests, key=lambda test: seconds[test])
        if seconds[shortest] < LONG:
            optional.discard(shortest)
    missing = set[tuple[str, int]]().union(*lines.values())
    for test in lines.keys() - optional:
        missing.difference_update(lines[test])
    while missing:
        best = max(sorted(optional), key=lambda test: len(missing.intersection(lines.get(test, ()))) / seconds[test])
        optional.remove(best)
        missing.difference_update(lines[best])
    return sorted(optional)


def write_cases(cases: Collection[str]) -> None:
    """Writes the list of nightly cases."""
    by_function = defaultdict[str, list[str]](list)
    for test in sorted(cases):
        by_function[function_of(test)].append(test.removeprefix(function_of(test)))
    FILE.write_text(json.dumps(by_function, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    mutants = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text())["mutants"]
    write_cases(choose_nightly(json.loads(SECONDS.read_text()), read_lines(TRACES), {m["killed_by"] for m in mutants}))
