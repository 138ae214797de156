"""What all launchers share: the jobs of a sweep, where each has its directory, and what became of it."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from triptych.config import ConfigError

UNCOUNTED = ("hydra", "run_dir", "logger")
"""Parts of the configuration that do not make a job another job."""


class SweepFailed(ConfigError):
    """Jobs of a sweep failed; the message names them.

    Attributes:
        results: what became of every job, in the order of the jobs.
    """

    def __init__(self, message: str, results: Sequence[JobReturn]) -> None:
        super().__init__(message)
        self.results = results


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        overrides: of the command line, without run_dir.
        directory: of the run.
    """

    overrides: list[str]
    directory: Path

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return (self.directory / "summary.json").exists()


def jobs_of(loader: ConfigLoader, sweep: DictConfig, overrides: Sequence[Sequence[str]]) -> list[Job]:
    """The jobs of a sweep. A job's directory is named by its experiment and the hash of its configuration, so that the
    same command finds its own work again.

    Args:
        loader: composes the configuration of each.
        sweep: the configuration of the sweep.
        overrides: of each job.
    """
    jobs = []
    for own in map(list, overrides):
        directory = job_directory(loader.load_sweep_config(sweep, own), own)
        jobs.append(Job([override for override in own if not override.startswith("run_dir=")], directory))
    return jobs


def job_directory(config: DictConfig, overrides: Sequence[str]) -> Path:
    """PARENT/EXPERIMENT-HASH; PARENT is what ``run_dir`` of the overrides says.

    Args:
        config: of the job.
        overrides: of the job.
    """
    choices = config.hydra.runtime.choices
    experiment = choices["experiment"] or f"{choices['data']}/{choices['task']}_{choices['model']}"
    parents = [override.removeprefix("run_dir=") for override in overrides if override.startswith("run_dir=")]
    parent = parents[-1] if parents else f"outputs/sweeps/{experiment}"
    content = OmegaConf.to_container(config, resolve=False)
    assert isinstance(content, dict)
    counted = {key: value for key, value in content.items() if key not in UNCOUNTED}
    digest = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
    return Path(parent) / f"{re.sub('[^A-Za-z0-9._-]', '.', experiment)}-{digest[:8]}"
