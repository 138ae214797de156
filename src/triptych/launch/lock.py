"""One job at a time in a run directory."""

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
"""In the environment of the processes that train together with the one that holds the lock: its directory, and the file
that it locked, by device and inode."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keeps other jobs out; the system gives the directory free when this process dies, however it dies. On a file
    system without locks no job is kept out, after a warning.

    Of several processes that are started from outside (by srun, torchrun), rank 0 holds it for all.

    Args:
        run_dir: the directory; made if it is not there.

    Raises:
        ConfigError: another job has it.
    """
    if not is_rank_0() or os.environ.get(HELD) == str(run_dir):
        yield
        return
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"run_dir={run_dir} is a file; expected a directory, there or not")
    run_dir.mkdir(parents=True, exist_ok=True)
    lock, holder = lock_of(run_dir), RunDirectory(run_dir).lock_holder
    who = ""
    if not lock.acquire(wait=False):
        with suppress(FileNotFoundError):
            who = f" ({holder.read_text()})"
        raise ConfigError(f"run_dir={run_dir}: another job is at work there{who}; choose another run_dir")
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
    """Removes the directory that Hydra made for a run that ended before it wrote anything but its log, and the folders
    above it that are empty then.

    Args:
        run_dir: relative to the working directory.
    """
    unused = {RunDirectory(run_dir).lock, RunDirectory(run_dir).log}
    if is_rank_0() and run_dir.is_dir() and {*run_dir.iterdir()} <= unused:
        with suppress(OSError):  # another process uses it
            for file in unused:
                file.unlink(missing_ok=True)
            for folder in (run_dir, *run_dir.parents[:-1]):
                folder.rmdir()


def is_still_held() -> bool:
    """Whether the lock of this job keeps others out: not once its directory is deleted, where the next job finds no
    lock."""
    if FILE not in os.environ:  # no lock, or a file system without locks
        return True
    try:
        return identify(RunDirectory(os.environ[HELD]).lock) == os.environ[FILE]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # of a network file system, that may answer again
        return True


def check_held() -> None:
    """Ends a run that no longer has its directory to itself."""
    if not is_still_held():
        raise RunError(f"run_dir={os.environ[HELD]} was deleted, moved or replaced during the run, so the run ends")


def identify(file: Path) -> str:
    """Device and inode of a file."""
    status = file.stat()
    return f"{status.st_dev} {status.st_ino}"


def wait_until_free(run_dir: Path) -> None:
    """Returns when no job is at work in the directory."""
    if RunDirectory(run_dir).lock.exists():
        with lock_of(run_dir):
            pass


def lock_of(run_dir: Path) -> Lock:
    """The lock of a run directory."""
    return Lock(RunDirectory(run_dir).lock, f"run_dir={run_dir}", "a second job there is not kept out")
