"""What the tests of faults share: runs as real processes, and ways to hurt them."""

import csv
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from clock import wait_until
from commands import Command

FULL = os.environ.get("TRIPTYCH_FAULTS") == "full"
"""Whether each fault is tried as often as docs/fault_injection.md says, or a few times only."""

TINY = [
    *tiny.TINY, "trainer.max_steps=60", "trainer.val_check_interval=7", "trainer.log_every_n_steps=3",
    "scheduler.warmup_steps=10", "callbacks.checkpoints.every_n_steps=5", "trainer.accelerator=cpu", "logger=csv",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The number of a fault travels with the reports: from the test's name (fault_7, faults_17_and_18), or from
    ``pytest.mark.fault(N)``."""
    for item in items:
        numbers = {int(mark.args[0]) for mark in item.iter_markers("fault")}
        if name := re.search(r"faults?_(\d+)(?:_and_(\d+))?", item.name):
            numbers |= {int(number) for number in name.groups() if number}
        item.user_properties += [("fault", number) for number in sorted(numbers)]


LIMITED = """
import resource, sys
from triptych.cli import main

resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
sys.exit(main())
"""


class Job:
    """A command in a session of its own.

    Args:
        arguments: after ``triptych``.
        cwd: where it runs.
        environment: what is added to the environment.
        memory: the most bytes of address space; None: no limit.
    """

    def __init__(
        self, *arguments: str, cwd: Path, environment: dict[str, str] | None = None, memory: int | None = None
    ) -> None:
        own = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
        own |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})}
        self.output = cwd / f"output-{len(list(cwd.glob('output-*')))}"
        self.output.touch()
        files = (Path(os.devnull), self.output, self.output)
        program = None if memory is None else LIMITED.format(memory=memory)
        self.process = Command(*arguments, cwd=cwd, environment=own, files=files, program=program)

    @property
    def text(self) -> str:
        """What it has said."""
        return self.output.read_text()

    def wait(self, seconds: float = 300) -> int:
        """Its exit status."""
        wait_until(lambda: self.process.poll() is not None, seconds, lambda: self.text, pause=0.005)
        return self.process.wait(0)

    def until(self, condition: Callable[[], object], seconds: float = 120) -> bool:
        """Waits until the condition holds (True), or the process has ended (False)."""
        held = False

        def is_over() -> bool:
            nonlocal held
            held = bool(condition())  # it may not last
            return held or self.process.poll() is not None

        wait_until(is_over, seconds, lambda: self.text, pause=0.002)
        return held or bool(condition())

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """The signal to the whole session: data workers too."""
        os.killpg(self.process.pid, signum)


class Run:
    """A run directory and what is in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def weights(self) -> str:
        """Equal for bitwise equal weights."""
        return str(self.summary["weights_sha256"])

    @property
    def checkpoints(self) -> list[int]:
        """The updates of the checkpoints that are there."""
        return sorted(int(f.stem.removeprefix("step-")) for f in (self.directory / "checkpoints").glob("step-*.ckpt"))

    @property
    def newest(self) -> int:
        """The newest of them; -1: none."""
        return max(self.checkpoints, default=-1)

    @property
    def series(self) -> list[dict[str, str]]:
        """The rows of metrics.csv without those columns that tell the time."""
        with open(self.directory / "metrics.csv", newline="") as file:
            rows = csv.DictReader(file)
            return [{k: v for k, v in row.items() if k not in ("train/tokens_per_second", "elapsed_s")} for row in rows]


@pytest.fixture
def full() -> bool:
    """Whether to try as often as the catalogue says."""
    return FULL


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    """Starts ``triptych train`` with tiny sizes in a directory; what is left of them is killed after the test."""
    jobs: list[Job] = []

    def start(
        cwd: Path,
        *overrides: str,
        environment: dict[str, str] | None = None,
        memory: int | None = None,
        without: str = "-",
    ) -> Job:
        sizes = [size for size in TINY if not size.startswith(without)]
        jobs.append(Job("train", *sizes, *overrides, cwd=cwd, environment=environment, memory=memory))
        return jobs[-1]

    yield start
    for started in jobs:
        try:
            started.kill()
        except ProcessLookupError:
            continue


@pytest.fixture
def run_of() -> type[Run]:
    """Reads a run directory."""
    return Run


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the name of the test."""
    return random.Random(request.node.nodeid)
