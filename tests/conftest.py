"""What pytest loads first, in its workers and in the process that distributes the tests."""

import os
import sys

import pytest

import forked_workers

pytest_plugins = ["faults_table", "clock", "durations", "nightly_cases"]


def pytest_configure(config: pytest.Config) -> None:
    """Loads what tests share, or has workers forked that do; the process that distributes tests does without torch."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("shared_fixtures")
    elif sys.platform == "linux" and "COVERAGE_PROCESS_START" not in os.environ and not config.option.collectonly:
        process, worker = forked_workers.start([*config.invocation_params.args])
        config.add_cleanup(process.communicate)
        config.option.tx = [f"popen//python={worker}"] * len(config.option.tx)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure: everything that the tests need is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("TRIPTYCH_CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("skipped tests are not accepted in CI", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
