"""Workers of pytest that are forked after one process has imported the tests."""

import subprocess
import sys
from pathlib import Path

CONFTEST = """
import forked_workers

def pytest_configure(config):
    if not hasattr(config, "workerinput") and config.getoption("numprocesses"):
        process, worker = forked_workers.start([*config.invocation_params.args])
        config.add_cleanup(process.communicate)
        config.option.tx = [f"popen//python={worker}"] * len(config.option.tx)
"""
TEST = """
import os
from pathlib import Path

import pytest

Path(f"imported-{os.getpid()}").touch()

@pytest.mark.parametrize("number", range(4))
def test_runs(number, tmp_path):
    Path(f"ran-{os.getpid()}").touch()
    assert number != 2
    if number == 3:
        os._exit(1)
"""


def test_tests_are_imported_once_and_run_by_each_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(__file__).parent}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "each", "--import-mode", "importlib"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    imported, ran = (len(list(tmp_path.glob(f"{name}-*"))) for name in ("imported", "ran"))
    assert (finished.returncode, imported, ran) == (1, 1, 2), finished.stdout
    assert finished.stdout.count("crashed while running") == 4
    assert "assert 2 != 2" in finished.stdout
