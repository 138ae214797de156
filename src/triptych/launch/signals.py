"""Signals that ask a process to end; only here are handlers set. A run acts on them between two updates."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Asked to end; SIGUSR1 is the warning of a scheduler that the time is nearly over, SIGHUP that of a lost terminal."""

Handler = Callable[[int, FrameType | None], object] | int | None

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


def catch_signals(*signums: int) -> dict[int, Handler]:
    """From now on ``received`` tells of these signals. A second Ctrl-C does not wait any more.

    Returns:
        The handlers that were replaced, for ``restore_handlers``.
    """
    return _set_handlers(_note, signums)


def ignore_signals(*signums: int) -> dict[int, Handler]:
    """From now on these signals do nothing. Returns what ``catch_signals`` does."""
    return _set_handlers(signal.SIG_IGN, signums)


def restore_handlers(handlers: Mapping[int, Handler]) -> None:
    """Puts replaced handlers back. None, a handler that Python did not set, becomes the default."""
    for signum, handler in handlers.items():
        signal.signal(signum, handler or signal.SIG_DFL)


@contextmanager
def record_signals(*signums: int) -> Iterator[list[signal.Signals]]:
    """A list of these signals as they come, while the context lasts."""
    recorded: list[signal.Signals] = []
    handlers = _set_handlers(lambda signum, _: recorded.append(signal.Signals(signum)), signums)
    try:
        yield recorded
    finally:
        restore_handlers(handlers)


def received() -> int | None:
    """The first signal that was caught."""
    return _noted[0] if _noted else None


def _note(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGINT and signum in _noted:
        raise KeyboardInterrupt
    _noted.append(signum)


def _set_handlers(handler: Handler, signums: tuple[int, ...]) -> dict[int, Handler]:
    """Leaves SIGHUP alone where ``nohup`` has it ignored: the loss of the terminal shall not matter then."""
    is_under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return {
        signum: signal.signal(signum, handler) for signum in signums if signum != signal.SIGHUP or not is_under_nohup
    }
