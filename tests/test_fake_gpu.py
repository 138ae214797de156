"""The tasks on a device that is not the CPU: ``on_fake_gpu.py``, in a process of its own, since torch takes a new
device only before its first backward pass, and computes no gradients in forks after that."""

import os
from pathlib import Path

import pytest

from cases import by_day
from commands import finish

PYTEST = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("tests", by_day(["not nightly", "nightly"], ["not nightly"]))
def test_everything_runs_on_another_device(tests: str) -> None:
    file = Path(__file__).with_name("on_fake_gpu.py")
    options = ("-n", "0", "-p", "no:cacheprovider", "--tb=short", "-m", tests)
    finished = finish(
        *options, str(file), cwd=file.parents[1], environment=dict(os.environ), program=PYTEST, seconds=900
    )
    assert finished.returncode == 0, finished.stdout[-12000:] + finished.stderr[-2000:]
