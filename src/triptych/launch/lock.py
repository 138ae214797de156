"""Allows one job at a time in a run directory.

Tested by tests/storage/test_locks.py and tests/launch/test_watch.py.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from triptych.config import ConfigError, RunError
from triptych.launch.environment import is_rank_0
from triptych.storage.locks import Lock
from triptych.storage.run_directory import RunDirectory

HELD, FILE = "TRIPTYCH_LOCKED", "TRIPTYCH_LOCK_FILE"
"""Environment variables of all ranks of the job that holds the lock: the run directory, and the device and inode of the
locked file."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks a run directory, and creates it if needed. The system releases the lock when this process ends.

    With srun or torchrun, rank 0 holds the lock for all ranks. On a file system without locks, a warning is logged and
    no job is blocked.

    Raises:
        ConfigError: another job holds the lock.
    """
    if not is_rank_0() or os.environ.get(HELD) == str(run_dir):
        yield
        return
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"run_dir={run_dir} is a file; expected a directory, which need not exist yet")
    run_dir.mkdir(parents=True, exist_ok=True)
    lock, holder = lock_of(run_dir), RunDirectory(run_dir).lock_holder
    found = ""
    if not lock.acquire(wait=False):
        with suppress(FileNotFoundError):
            found = f" ({holder.read_text()})"
        raise ConfigError(f"run_dir={run_dir}: another job uses this directory{found}. Choose another run_dir")
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        os.environ[HELD] = str(run_dir)
        if lock.is_exclusive:
            os.environ[FILE] = identify(RunDirectory(run_dir).lock)
        yield
    finally:
        if is_still_held():
            holder.unlink(missing_ok=True)
        for name in (HELD, FILE):
            os.environ.pop(name, None)
        lock.release()


def remove_unused(run_dir: Path) -> None:
    """Removes the directory of a run that wrote nothing but its log, and its empty parents.

    Args:
        run_dir: path relative to the working directory.
    """
    unused = {RunDirectory(run_dir).lock, RunDirectory(run_dir).log}
    if is_rank_0() and run_dir.is_dir() and {*run_dir.iterdir()} <= unused:
        with suppress(OSError):  # another process uses it
            for file in unused:
                file.unlink(missing_ok=True)
            for folder in (run_dir, *run_dir.parents[:-1]):
                folder.rmdir()


def is_still_held() -> bool:
    """Whether this job still holds its lock; not if its directory was deleted, so that the next job finds no lock."""
    if FILE not in os.environ:  # not locked, or a file system without locks
        return True
    try:
        return identify(RunDirectory(os.environ[HELD]).lock) == os.environ[FILE]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a network file system, which may recover
        return True


def check_held() -> None:
    """Raises an error if this job no longer holds its lock."""
    if not is_still_held():
        raise RunError(f"run_dir={os.environ[HELD]} was deleted, moved or replaced during the run")


def identify(file: Path) -> str:
    """The device and inode of a file."""
    status = file.stat()
    return f"{status.st_dev} {status.st_ino}"


def wait_until_free(run_dir: Path) -> None:
    """Waits until no job uses the directory."""
    if RunDirectory(run_dir).lock.exists():
        with lock_of(run_dir):
            pass


def lock_of(run_dir: Path) -> Lock:
    """The lock of a run directory."""
    return Lock(RunDirectory(run_dir).lock, f"run_dir={run_dir}", "a second job could use the same directory")
