"""Signals that ask a run to end, noted here and acted on between two updates."""

import os
import re
import signal
import subprocess
from types import FrameType

from triptych.config import RunError

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Asked to end; SIGUSR1 is the warning of a scheduler that the time is nearly over."""

_noted: list[int] = []


class Interruption(Exception):
    """The run was asked to end, and has saved what it had.

    Args:
        signum: the signal.
        update: the updates that were done.

    Attributes:
        again: the command that goes on from there.
    """

    def __init__(self, signum: int, update: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} at update {update}")
        self.signum, self.again = signum, "the same command"

    @property
    def status(self) -> int:
        """The exit status: 128 + the signal, as a shell would say."""
        return 128 + self.signum


def catch(*signums: int) -> None:
    """From now on these signals are noted. A second Ctrl-C does not wait any more."""
    for signum in signums:
        signal.signal(signum, _note)


def release(*signums: int) -> None:
    """These signals do again what they do in any Python program."""
    for signum in signums:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def received() -> int | None:
    """The first signal that was noted."""
    return _noted[0] if _noted else None


def _note(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGINT and signum in _noted:
        raise KeyboardInterrupt
    _noted.append(signum)


def ignore_in_worker(_: int) -> None:
    """For the processes that load data: a signal to the whole group must not take them away from under the run."""
    for signum in STOPS:
        signal.signal(signum, signal.SIG_IGN)


def is_rank_0() -> bool:
    """Whether this process speaks for those that train together, by what srun, torchrun or the parent tells it."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def is_one_of_several() -> bool:
    """Whether srun, torchrun or the parent has started others that train together with this process."""
    ranks = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    return max(ranks, int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1


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
