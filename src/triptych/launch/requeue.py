"""How a job of SLURM goes back into the queue."""

import os
import re
import signal
import subprocess

from triptych.config import RunError


def job_of_slurm() -> str | None:
    """The SLURM job that this process belongs to; None: none."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # one task of an array has the array's own number as its SLURM_JOB_ID
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def goes_back(job: str, signum: int) -> bool:
    """Whether a SLURM job that was asked to end belongs back into the queue: it was warned, or another one takes its
    place (then SIGTERM comes, where the cluster is not told to send the warning). One that was cancelled does not.

    Raises:
        RunError: SLURM cannot be asked about a job that was warned.
    """
    try:
        job_now = _scontrol("show", "job", "--oneliner", job)
    except RunError:
        if signum == signal.SIGUSR1:
            raise
        return False
    fields = dict(re.findall(r"(\w+)=(\S*)", job_now))
    is_over = fields["JobState"] != "RUNNING" and fields["Reason"] != "TimeLimit"  # cancelled, or in the queue already
    is_preempted = fields.get("PreemptTime", "None") != "None"
    return not is_over and (signum == signal.SIGUSR1 or (signum == signal.SIGTERM and is_preempted))


def requeue(job: str) -> None:
    """Puts a SLURM job back into the queue, which ends its processes.

    Raises:
        RunError: there is no scontrol, or it refused.
    """
    _scontrol("requeue", job)


def _scontrol(*arguments: str) -> str:
    try:
        return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise RunError(
            f"job {arguments[-1]} could not be put back into the queue ({reason}); its checkpoint is saved"
        ) from None
