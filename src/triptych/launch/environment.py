"""What this process is told by SLURM, torchrun or its parent of the others, and by the system of its CPUs."""

import os


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
