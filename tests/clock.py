"""Bounds by the clock: what must happen within some seconds, however busy the machine is.

With ``TRIPTYCH_CI`` in the environment, as ``.ci/run`` sets it, bounds are three times as wide; and where nothing else
has failed, the tests that missed one are repeated, one after the other, before they count.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator

import pytest

IN_CI = bool(os.environ.get("TRIPTYCH_CI"))


class TooLateError(AssertionError):
    """A bound by the clock was missed."""


LATE = (TooLateError, subprocess.TimeoutExpired)


def bound(seconds: float) -> float:
    """How long to wait for what takes so many seconds at most."""
    return 3 * seconds if IN_CI else seconds


def check_within(seconds: float, taken: float, what: str = "") -> None:
    """Raises TooLateError where something took longer than so many seconds."""
    if taken >= bound(seconds):
        raise TooLateError(f"{taken:.1f} s, not within {bound(seconds):g} s: {what}")


def wait_until(condition: Callable[[], object], seconds: float, what: object = "", pause: float = 0.05) -> float:
    """Waits until a condition holds; how many seconds that took.

    Args:
        condition: asked again and again.
        seconds: the most that it may take.
        what: is waited for; a callable is asked when it is too late.
        pause: between two questions, in seconds.
    """
    started = time.monotonic()
    while not condition():
        check_within(seconds, time.monotonic() - started, what() if callable(what) else what)
        time.sleep(pause)
    return time.monotonic() - started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says in a report whether the test was too late."""
    report = yield
    report.late = call.excinfo is not None and call.excinfo.errisinstance(LATE)
    return report


class Repetition:
    """Repeats the tests that were too late, where nothing else has failed."""

    def __init__(self) -> None:
        self.late: dict[str, None] = {}
        self.others = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test, in the process that all report to."""
        if getattr(report, "late", False):
            self.late[report.nodeid] = None
        elif not report.passed:
            self.others += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """After the summary: one process, one test at a time."""
        yield
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or self.others or not self.late:
            return
        print(f"\nalone, since too late: {', '.join(self.late)}", flush=True)
        command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", "-p", "no:repetition", *self.late]
        own = {
            name: value
            for name, value in os.environ.items()
            if name not in ("TRIPTYCH_FAULTS_TABLE", "TRIPTYCH_DURATIONS")
        }
        session.exitstatus = subprocess.run(command, cwd=session.config.rootpath, env=own, check=False).returncode


def pytest_configure(config: pytest.Config) -> None:
    """One process repeats what all report."""
    if IN_CI and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Repetition(), "repetition")
