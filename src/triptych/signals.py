"""Signals that ask a run to end, noted here and acted on between two updates. No imports of ours."""

import os
import signal
import subprocess
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Asked to end; SIGUSR1 is the warning of a scheduler that the time is nearly over."""

_noted: list[int] = []


class Interruption(Exception):
    """The run was asked to end, and has saved what it had.

    Args:
        signum: the signal.
        update: the updates that were done.
    """

    def __init__(self, signum: int, update: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} at update {update}")
        self.signum = signum

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


def requeue() -> str | None:
    """Puts the SLURM job that this process belongs to back into the queue; of several processes, rank 0 does.

    Returns:
        The job; None outside of SLURM, and on the other ranks.

    Raises:
        OSError: there is no scontrol, or it refused.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or os.environ.get("SLURM_PROCID", "0") != "0":
        return None
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # one task of an array has the array's own number as its SLURM_JOB_ID
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    finished = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    if finished.returncode:
        raise OSError(f"scontrol requeue {job}: {finished.stderr.strip()}")
    return job
