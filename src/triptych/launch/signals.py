"""Signals that ask a run to end, noted here and acted on between two updates."""

import signal
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Asked to end; SIGUSR1 is the warning of a scheduler that the time is nearly over, SIGHUP that of a lost terminal."""

_noted: list[int] = []


class Interruption(Exception):
    """The run was asked to end, and has saved what it had.

    Args:
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


def is_of_no_concern(signum: int) -> bool:
    """Whether the loss of the terminal shall not matter, as ``nohup`` has it."""
    return signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN


def catch(*signums: int) -> None:
    """From now on these signals are noted. A second Ctrl-C does not wait any more."""
    for signum in signums:
        if not is_of_no_concern(signum):
            signal.signal(signum, _note)


def release(*signums: int) -> None:
    """These signals do again what they do in any Python program."""
    for signum in signums:
        if not is_of_no_concern(signum):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def received() -> int | None:
    """The first signal that was noted."""
    return _noted[0] if _noted else None


def _note(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGINT and signum in _noted:
        raise KeyboardInterrupt
    _noted.append(signum)
