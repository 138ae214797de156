"""A sweep on this machine: one process and one directory for each job, one after the other."""

import hashlib
import json
import logging
import re
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

log = logging.getLogger("triptych")


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
        """
        jobs = [(list(overrides), self._directory(list(overrides))) for overrides in job_overrides]
        whole = OmegaConf.to_container(self._config)
        redact = Redactor(whole)
        written = Path(self._config.hydra.sweep.dir) / "multirun.yaml"  # by Hydra
        written.write_text(OmegaConf.to_yaml(OmegaConf.create(redact(whole))))
        results, failed = [], []
        for number, (overrides, directory) in enumerate(jobs, 1):
            others = [override for override in overrides if not override.startswith("run_dir=")]
            shown = redact(" ".join(others))
            title = f"job {number} of {len(jobs)}: {shown}"
            if (directory / "summary.json").exists():
                print(f"{title}: done already, see {directory}", flush=True)
                status = 0
            else:
                print(f"{title}\n  -> {directory}", flush=True)
                command = [sys.executable, "-m", "triptych", "train", *others, f"run_dir={directory}"]
                status = subprocess.run(command, check=False).returncode
            if status:
                failed.append(f"{shown} (exit status {status}, {directory})")
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
