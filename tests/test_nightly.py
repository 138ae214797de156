"""Which tests run by day and which in ``make nightly``, which first, and what a release asks for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import durations
import nightly


def git(folder: Path, *arguments: str) -> None:
    own = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_release_asks_for_the_nightly_tests_of_its_commit(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("outputs\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    first = nightly.find_commit(tmp_path)
    assert len(first) == 40
    assert nightly.check_record(tmp_path) == (
        f"outputs/nightly.json: no such file; run make nightly at commit {first[:7]}"
    )
    nightly.write_record(tmp_path, first)
    assert nightly.check_record(tmp_path) is None
    (tmp_path / ".gitignore").write_text("outputs\nmore\n")
    assert nightly.check_record(tmp_path) == "there are uncommitted changes; commit them, then run make nightly"
    git(tmp_path, "commit", "-a", "-m", "second")
    second = nightly.find_commit(tmp_path)
    assert nightly.check_record(tmp_path) == (
        f"outputs/nightly.json is of commit {first[:7]}; run make nightly at commit {second[:7]}"
    )


TESTS = """
import pytest

def test_plain(): pass
@pytest.mark.faults
def test_fault(): pass
@pytest.mark.nightly
def test_plain_at_night(): pass
@pytest.mark.nightly
@pytest.mark.faults
def test_fault_at_night(): pass
"""


@pytest.mark.parametrize(
    ("goal", "expected"), [("test", ["plain"]), ("faults", ["fault"]), ("faults FULL=1", ["fault", "fault_at_night"])]
)
def test_by_day_they_do_not_run(goal: str, expected: list[str], tmp_path: Path) -> None:
    said = subprocess.check_output(["make", "-n", "-o", ".venv/installed", *goal.split()], cwd=nightly.ROOT, text=True)
    (chosen,) = re.findall(r"-m pytest *(?:-m (?:\"(.*?)\"|(\S+)))?", said)
    (tmp_path / "test_four.py").write_text(TESTS)
    options = ["-m", "".join(chosen)] if any(chosen) else []
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(nightly.ROOT / "pyproject.toml"), "-n", "0", "-vv", *options,
         "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "test_four.py")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.findall(r"::test_(\w+) PASSED", finished.stdout) == expected, finished.stdout + finished.stderr


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_the_longest_files_run_first_and_stay_whole() -> None:
    items = [Item(f"tests/{name}.py::test_{number}") for name in ("new", "short", "long") for number in (2, 1)]
    durations.longest_first(items, {"tests/short.py": 3, "tests/long.py": 60})  # type: ignore[arg-type]
    order = [item.nodeid.removeprefix("tests/") for item in items]
    assert order == [f"{name}.py::test_{number}" for name in ("long", "short", "new") for number in (2, 1)]
