"""Requeues SLURM jobs.

Tested by tests/faults/processes/test_resume_faults.py.
"""

import os
import re
import signal
import subprocess

from triptych.config import RunError


def job_of_slurm() -> str | None:
    """The ID of the SLURM job of this process; None: not in a SLURM job."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # one task has the SLURM_JOB_ID of the whole array, which would requeue all
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def should_requeue(job: str, signum: int) -> bool:
    """Whether to requeue a SLURM job after a signal: yes after a warning of its time limit or a preemption (for which
    some clusters only send SIGTERM), no if it was cancelled.

    Raises:
        RunError: scontrol failed after a warning.
    """
    try:
        job_now = _scontrol("show", "job", "--oneliner", job)
    except RunError:
        if signum == signal.SIGUSR1:
            raise
        return False
    fields = dict(re.findall(r"(\w+)=(\S*)", job_now))
    is_over = fields["JobState"] != "RUNNING" and fields["Reason"] != "TimeLimit"  # cancelled, or already requeued
    is_preempted = fields.get("PreemptTime", "None") != "None"
    return not is_over and (signum == signal.SIGUSR1 or (signum == signal.SIGTERM and is_preempted))


def requeue(job: str) -> None:
    """Requeues a SLURM job, which ends its processes.

    Raises:
        RunError: scontrol is missing or failed.
    """
    _scontrol("requeue", job)


def _scontrol(*arguments: str) -> str:
    try:
        return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise RunError(
            f"scontrol {arguments[0]} of job {arguments[-1]} failed ({reason}): not requeued; its checkpoint is saved"
        ) from None
