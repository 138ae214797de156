"""File locks of the operating system, which are released when their process ends."""

import errno
import logging
import os
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

NOT_SUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
"""Errors of ``flock`` on a file system without locks, such as some network file systems."""

log = logging.getLogger("triptych")


class Lock:
    """An exclusive lock, initially released. On a file system without locks it does not exclude other processes, and
    logs a warning once. (A plain lock file would outlive a killed process.)

    Args:
        path: lock file, which is not deleted.
        place: subject of the warning.
        without: consequence of a file system without locks.

    Attributes:
        is_exclusive: whether the acquired lock excludes other processes.
    """

    def __init__(self, path: Path | str, place: str, without: str) -> None:
        self._lock = FileLock(os.fspath(path), fallback_to_soft=False)
        self._warning = f"{place}: this file system has no locks, so {without}"
        self.is_exclusive = True

    def acquire(self, *, wait: bool = True) -> bool:
        """Acquires the lock, waiting for it if ``wait`` is set; returns False if another process holds it."""
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
        """Releases the lock."""
        self._lock.release()

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@cache
def warn_once(message: str) -> None:
    """Logs a warning once per process."""
    log.warning(message)
