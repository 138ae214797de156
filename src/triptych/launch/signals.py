"""Signals that stop a process; only this module sets handlers. A run handles them between two steps."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that stop a run; SIGUSR1 is a scheduler's warning before the time limit, SIGHUP the loss of the terminal."""

Handler = Callable[[int, FrameType | None], object] | int | None

_noted: list[int] = []


class Interruption(Exception):
    """A signal stopped the run, which has saved a checkpoint.

    Args:
        step: number of completed steps.

    Attributes:
        again: command that resumes the run.
    """

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} at step {step}")
        self.signum, self.again = signum, "the same command again"

    @property
    def status(self) -> int:
        """The exit status: 128 + the signal, as in a shell."""
        return 128 + self.signum


def catch_signals(*signums: int) -> dict[int, Handler]:
    """Starts to catch signals for ``received``. A second Ctrl-C raises KeyboardInterrupt.

    Returns:
        The replaced handlers, for ``restore_handlers``.
    """
    return _set_handlers(_note, signums)


def ignore_signals(*signums: int) -> dict[int, Handler]:
    """Starts to ignore signals. Returns the replaced handlers."""
    return _set_handlers(signal.SIG_IGN, signums)


def restore_handlers(handlers: Mapping[int, Handler]) -> None:
    """Restores replaced handlers. None, a handler not set by Python, becomes the default."""
    for signum, handler in handlers.items():
        signal.signal(signum, handler or signal.SIG_DFL)


def reset_handlers(*signums: int) -> None:
    """Restores the handlers that Python starts with, except for ignored signals."""
    for signum in signums:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def blocked_signals(*signums: int) -> Iterator[None]:
    """Delays these signals until the context ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signums)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals(*signums: int) -> None:
    """Delivers these signals from now on, in a child that was forked while they were blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signums)


@contextmanager
def record_signals(*signums: int) -> Iterator[list[signal.Signals]]:
    """A list that collects these signals as they arrive, within the context."""
    recorded: list[signal.Signals] = []
    handlers = _set_handlers(lambda signum, _: recorded.append(signal.Signals(signum)), signums)
    try:
        yield recorded
    finally:
        restore_handlers(handlers)


def received() -> int | None:
    """The first caught signal; None: none."""
    return _noted[0] if _noted else None


def _note(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGINT and signum in _noted:
        raise KeyboardInterrupt
    _noted.append(signum)


def _set_handlers(handler: Handler, signums: tuple[int, ...]) -> dict[int, Handler]:
    """Sets handlers, but keeps SIGHUP ignored under ``nohup``."""
    is_under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    changed = [signum for signum in signums if signum != signal.SIGHUP or not is_under_nohup]
    return {signum: signal.signal(signum, handler) for signum in changed}
