"""A bound by the clock that is missed, and a failure that is none: what becomes of them with and without CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
from pathlib import Path

import pytest
from clock import bound, check_within


def log(name):
    with open("log", "a") as file:
        file.write(f"{name} ")


def test_passes():
    log("passes")


@pytest.mark.faults
def test_late():
    log("late")
    check_within(1, 2.5 if bound(1) == 1 else 3.5 if Path("log").read_text().count("late") < LATE else 2.5)
"""
PLAIN = """

def test_plain():
    log("plain")
    assert 1 == 2
"""


@pytest.mark.parametrize(
    ("in_ci", "late", "plain", "status", "runs"),
    [
        ("", 1, "", 1, ["late", "passes"]),  # 2.5 s are not within one
        ("1", 1, "", 0, ["late", "passes"]),  # but within three
        ("1", 2, "", 0, ["late", "late", "passes"]),  # 3.5 s are not, 2.5 s alone are
        ("1", 9, "", 1, ["late", "late", "passes"]),  # late again: once is enough
        ("1", 2, PLAIN, 1, ["late", "passes", "plain"]),  # a failure counts at once
    ],
)
def test_what_is_late_is_repeated_alone(
    in_ci: str, late: int, plain: str, status: int, runs: list[str], tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m faults\nmarkers = faults\n")
    (tmp_path / "test_it.py").write_text(TESTS.replace("LATE", str(late)) + plain)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", ""]
    own = {**os.environ, "TRIPTYCH_CI": in_ci, "PYTHONPATH": str(Path(__file__).parent)}
    own |= {"PYTEST_PLUGINS": "xdist.plugin,clock", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no others, for speed
    finished = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert finished.returncode == status, finished.stdout
    assert sorted((tmp_path / "log").read_text().split()) == runs, finished.stdout
    assert ("alone, since too late: test_it.py::test_late" in finished.stdout) == (runs.count("late") == 2)
