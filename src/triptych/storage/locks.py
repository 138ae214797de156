"""Locks of the system on files, which it releases when their process ends, however it ends."""

import errno
import logging
import os
from functools import cache
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

NOT_SUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
"""What ``flock`` answers on a file system without locks: some network file systems, and Lustre mounted without them."""

log = logging.getLogger("triptych")


class Lock:
    """An exclusive lock, not held yet. Where the file system has no locks, it excludes no other process, and a warning
    says so once. A file in place of a lock would outlive a killed process, so there is none.

    Args:
        path: of the lock file, which stays.
        place: what the warning is about.
        without: the consequence where the file system has no locks.

    Attributes:
        is_exclusive: whether the lock, once acquired, keeps other processes out.
    """

    def __init__(self, path: Path | str, place: str, without: str) -> None:
        self._lock = FileLock(os.fspath(path), fallback_to_soft=False)
        self._warning = f"{place}: this file system has no locks, so {without}"
        self.is_exclusive = True

    def acquire(self, *, wait: bool = True) -> bool:
        """Takes the lock.

        Args:
            wait: whether to wait for the process that holds it.

        Returns:
            False: another process holds it.
        """
        try:
            self._lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            self.is_exclusive = False
            warn_once(self._warning)
        return True

    def release(self) -> None:
        """Releases it."""
        self._lock.release()

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


@cache
def warn_once(message: str) -> None:
    """Logs a warning, the first time in a process."""
    log.warning(message)
