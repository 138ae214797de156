"""What this process is told by SLURM, torchrun or its parent of the others, by the system of its CPUs, and by the
configuration of its devices. None of this needs torch."""

import os

from omegaconf import ListConfig


def wait_briefly() -> None:
    """Threads that wait for each other give up their CPU soon: on CPUs that others use, too, trainings are 2 to 8 times
    as fast then; on idle ones they are as fast as before. For this process and its children, before torch is there.
    Unless the environment says something of it."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU's OpenMP, in torch for Linux, has 300,000


def is_rank_0() -> bool:
    """Whether this process speaks for those that train together, by what srun, torchrun or the parent tells it."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def is_one_of_several() -> bool:
    """Whether srun, torchrun or the parent has started others that train together with this process."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    return max(ranks, int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_devices(devices: object, there: int) -> int:
    """How many ``trainer.devices`` are; 0: a word that names none.

    Args:
        devices: a number, a list, numbers between commas, or auto.
        there: what auto, or -1, stands for.
    """
    if isinstance(devices, ListConfig):
        return len(devices)
    if str(devices) in ("auto", "-1"):
        return there
    if "," in str(devices):
        return len([number for number in str(devices).split(",") if number])
    return int(str(devices)) if str(devices).isdecimal() else 0
