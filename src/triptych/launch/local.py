"""A sweep on this machine: one process and one directory for each job, one after the other."""

import hashlib
import json
import os
import re
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
from triptych.redaction import Redactor

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a sweep to end."""


class LocalLauncher(Launcher):
    """Runs each job as ``triptych train`` in a process of its own: nothing leaks from one run into the next, and a run
    that fails takes no other along.

    A job's directory is named by its experiment and the hash of its configuration, so that the same command finds its
    own work again: jobs that are done are not run again.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; the one error at the end names those that failed.

        Args:
            job_overrides: the overrides of each job.
            initial_job_idx: number of the first.

        Raises:
            ConfigError: jobs failed.
            SystemExit: a signal asked the sweep to end.
        """
        jobs = [(list(overrides), self._directory(list(overrides))) for overrides in job_overrides]
        whole = OmegaConf.to_container(self._config)
        redact = Redactor(whole)
        written = Path(self._config.hydra.sweep.dir) / "multirun.yaml"  # by Hydra
        written.write_text(OmegaConf.to_yaml(OmegaConf.create(redact(whole))))
        sources = self._config.hydra.runtime.config_sources
        flags = [] if os.getcwd() in sys.path else ["-P"]  # jobs import from where this process does, no more
        python = [sys.executable, *flags, "-m", "triptych", "train"]
        folders = [f"--config-dir={source.path}" for source in sources if source.provider == "command-line"]
        results, failed = [], []
        for number, (overrides, directory) in enumerate(jobs, 1):
            others = [override for override in overrides if not override.startswith("run_dir=")]
            shown = redact(" ".join(others))
            title = f"job {number} of {len(jobs)}: {shown}"
            record = directory / "summary.json"
            if record.exists():
                print(f"{title}: done already, see {directory}", flush=True)
                status = 0
            else:
                print(f"{title}\n  -> {directory}", flush=True)
                command = [*python, *others, f"run_dir={directory}", *folders]
                status, asked = run(command)
                if asked:
                    print(f"stopped by {asked.name} in {title}; the same command goes on", file=sys.stderr)
                    raise SystemExit(128 + asked)
            if status or not record.exists():
                end = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
                failed.append(f"{shown} ({end}, {directory})")
            results.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=status))
        if failed:
            raise ConfigError(f"{len(failed)} of {len(jobs)} jobs failed: " + "; ".join(failed))
        return results

    def _directory(self, overrides: list[str]) -> Path:
        """PARENT/EXPERIMENT-HASH; the hash is that of the configuration without run_dir, logger and Hydra's own."""
        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        choices = config.hydra.runtime.choices
        experiment = choices["experiment"] or f"{choices['data']}/{choices['task']}_{choices['model']}"
        parents = [override.removeprefix("run_dir=") for override in overrides if override.startswith("run_dir=")]
        parent = parents[-1] if parents else f"outputs/sweeps/{experiment}"
        content = OmegaConf.to_container(config, resolve=False)
        assert isinstance(content, dict)
        counted = {key: value for key, value in content.items() if key not in ("hydra", "run_dir", "logger")}
        digest = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
        return Path(parent) / f"{re.sub('[^A-Za-z0-9._-]', '.', experiment)}-{digest[:8]}"


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
