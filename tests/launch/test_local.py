"""A sweep on this machine that is asked to end."""

import os
import signal
import sys
from pathlib import Path
from threading import Thread

import pytest
from omegaconf import DictConfig

from clock import wait_until
from triptych.launch.local import run_jobs
from triptych.launch.sweep import Job
from triptych.storage.redaction import Redactor

BEGIN = (
    "import pathlib, sys, time; pathlib.Path(sys.argv[-1].removeprefix('run_dir='), '.lock').touch(); time.sleep(600)"
)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_what_was_stopped_has_not_failed(n_jobs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [Job([f"seed={seed}"], tmp_path / str(seed), DictConfig({}), f"arm seed={seed}") for seed in range(1, 5)]
    jobs[0].directory.mkdir()
    (jobs[0].directory / "summary.json").write_text('{"metrics": {"test/loss": 1.0}}')

    def ask() -> None:
        wait_until(lambda: len(list(tmp_path.glob("*/.lock"))) == n_jobs, 60, "the jobs")
        os.kill(os.getpid(), signal.SIGTERM)

    asking = Thread(target=ask)
    asking.start()
    with pytest.raises(SystemExit) as caught:
        run_jobs(jobs, [sys.executable, "-c", BEGIN], n_jobs, Redactor(), "`triptych demo`")
    asking.join()
    said = capfd.readouterr()
    assert caught.value.code == 143
    assert said.err == f"stopped by SIGTERM: 1 of 4 done, {n_jobs} started. Run `triptych demo` to resume.\n"
    assert "failed" not in said.out
    assert said.out.count(": stopped (") == (2 if n_jobs == 2 else 0)
    assert "job 2 of 4: arm seed=2\n" in said.out
    assert all((job.directory / "job.json").exists() for job in jobs[1:])


def test_a_job_that_was_done_already_says_nothing_of_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Here another process has done it, after the sweep began: to see that takes no time, to train does."""
    done = "d = pathlib.Path(sys.argv[-1].removeprefix('run_dir=')); (d / 'summary.json').write_text("
    done = f'import os, pathlib, sys; {done}\'{{"metrics": {{"test/loss": 1.0}}}}\')'
    long_ago = "; os.utime(d / 'summary.json', (0, 0)) if d.name == '1' else None"
    jobs = [Job([f"seed={seed}"], tmp_path / str(seed), DictConfig({})) for seed in (1, 2, 3)]
    assert run_jobs(jobs, [sys.executable, "-c", done + long_ago], 1, Redactor()) == {}
    assert [line for line in capfd.readouterr().out.splitlines() if "done;" in line] == [
        "2 of 3 jobs done; less than a second left"
    ]
