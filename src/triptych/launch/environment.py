"""The ranks, CPUs and devices of this process, from environment variables, the system and the configuration; without
torch.

Tested by tests/launch/test_processes.py.
"""

import os

from omegaconf import ListConfig


def wait_briefly() -> None:
    """Makes OpenMP threads yield the CPU soon while they wait, unless the environment sets OMP_WAIT_POLICY.

    On shared CPUs training is 2 to 8 times faster; on idle ones the speed is the same. Call it before torch is
    imported. Child processes inherit the setting."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU OpenMP's default is 300,000


def is_rank_0() -> bool:
    """Whether this process has rank 0, according to srun, torchrun or its parent."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def is_one_of_several() -> bool:
    """Whether srun, torchrun or the parent started several ranks."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    return max(ranks, int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_devices(devices: object, there: int) -> int:
    """The number of devices in ``trainer.devices``; 0: invalid.

    Args:
        devices: a number, a list, numbers separated by commas, or auto.
        there: number of devices for auto or -1.
    """
    if isinstance(devices, ListConfig):
        return len(devices)
    if str(devices) in ("auto", "-1"):
        return there
    if "," in str(devices):
        return len([number for number in str(devices).split(",") if number])
    return int(str(devices)) if str(devices).isdecimal() else 0
