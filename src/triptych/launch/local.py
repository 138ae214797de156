"""A sweep on this machine: one process and one directory for each job, one after the other."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError
from triptych.launch.sweep import SweepFailed, jobs_of
from triptych.redaction import Redactor

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a sweep to end."""


class LocalLauncher(Launcher):
    """Runs each job as ``triptych train`` in a process of its own: nothing leaks from one run into the next, and a run
    that fails takes no other along. Jobs that are done are not run again.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; the one error at the end names those that failed.

        Args:
            job_overrides: the overrides of each job.
            initial_job_idx: number of the first.

        Returns:
            For each job its directory as the value.

        Raises:
            SweepFailed: jobs failed.
            SystemExit: a signal asked the sweep to end.
        """
        jobs = jobs_of(self._context.config_loader, self._config, job_overrides)
        whole = OmegaConf.to_container(self._config)
        redact = Redactor(whole)
        written = Path(self._config.hydra.sweep.dir) / "multirun.yaml"  # by Hydra
        written.write_text(OmegaConf.to_yaml(OmegaConf.create(redact(whole))))
        sources = self._config.hydra.runtime.config_sources
        flags = [] if os.getcwd() in sys.path else ["-P"]  # jobs import from where this process does, no more
        python = [sys.executable, *flags, "-m", "triptych", "train"]
        folders = [f"--config-dir={source.path}" for source in sources if source.provider == "command-line"]
        results, failed = [], []
        for number, job in enumerate(jobs, 1):
            shown = redact(" ".join(job.overrides))
            title = f"job {number} of {len(jobs)}: {shown}"
            status = 0
            if job.is_done:
                print(f"{title}: done already, see {job.directory}", flush=True)
            else:
                print(f"{title}\n  -> {job.directory}", flush=True)
                status, asked = run([*python, *job.overrides, f"run_dir={job.directory}", *folders])
                if asked:
                    print(f"stopped by {asked.name} in {title}; the same command goes on", file=sys.stderr)
                    raise SystemExit(128 + asked)
            result = JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=str(job.directory))
            if status or not job.is_done:
                end = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
                failed.append(f"{shown} ({end}, {job.directory})")
                result.status, result.return_value = JobStatus.FAILED, ConfigError(failed[-1])
            results.append(result)
        if failed:
            raise SweepFailed(f"{len(failed)} of {len(jobs)} jobs failed: " + "; ".join(failed), results)
        return results


def run(command: Sequence[str]) -> tuple[int, signal.Signals | None]:
    """Runs a job, and waits for it even where the sweep is asked to end: the job is then asked too. (Of a Ctrl-C the
    terminal tells both, and the job must hear of it once.)

    Args:
        command: of the job.

    Returns:
        its exit status, negative for the signal that killed it; the signal by which the sweep was asked to end.
    """
    asked: list[signal.Signals] = []
    job = subprocess.Popen(command)

    def ask(signum: int, frame: object) -> None:
        asked.append(signal.Signals(signum))
        if signum != signal.SIGINT:
            job.send_signal(signum)

    before = {signum: signal.signal(signum, ask) for signum in STOPS}
    try:
        status = job.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return status, asked[0] if asked else None
