"""The batch script of a sweep, for the doctor.

Tested by tests/test_printed_commands.py and tests/planning/test_doctor.py.
"""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from triptych.config import as_dict
from triptych.launch.slurm import SlurmJobRunner
from triptych.launch.sweep import Job, job_directory, train_command

log = logging.getLogger("triptych")

ARRAY = "triptych-NAME"
"""Placeholder for the random name of the array."""


def batch_script(config: DictConfig, jobs: Sequence[Job]) -> str:
    """The batch script of the unfinished jobs of a sweep; empty: all are finished.

    Args:
        config: configuration of one job.
        jobs: jobs of the sweep; empty: not a sweep.
    """
    node = as_dict(HydraConfig.get().launcher)
    launcher = SlurmJobRunner(**{name: value for name, value in node.items() if not name.startswith("_")})
    launcher.check_layout(config.trainer)
    if not jobs:
        log.warning("hydra/launcher=slurm is for sweeps: without -m, the run starts on this computer")
    jobs = [job for job in jobs if not job.is_done]
    if not jobs:
        return ""
    return launcher.script(jobs, ARRAY, Path(HydraConfig.get().sweep.dir) / "slurm", train_command(sweep_config()))


def sweep_config() -> DictConfig:
    """The configuration of the sweep with Hydra's node."""
    return cast(DictConfig, HydraConfig.instance().cfg)


def composed(overrides: Sequence[str]) -> DictConfig:
    """The doctor's configuration of a job, without Hydra's node."""
    config = GlobalHydra.instance().config_loader().load_sweep_config(sweep_config(), list(overrides))
    with open_dict(config):
        del config.hydra
    return config


def job_of(overrides: Sequence[str]) -> Job:
    """The job of ``triptych train`` with these overrides, in the same directory."""
    own = [override for override in overrides if not override.startswith("device=")]
    config = GlobalHydra.instance().config_loader().load_sweep_config(sweep_config(), own)
    content = as_dict(config, resolve=False)
    del content["device"]  # only for the doctor
    config = OmegaConf.create(content)
    others = [override for override in own if not override.startswith("run_dir=")]
    return Job(others, job_directory(config, own), config)
