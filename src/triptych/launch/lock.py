"""One job at a time in a run directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from triptych.config import ConfigError
from triptych.launch.environment import is_rank_0

HELD = "TRIPTYCH_LOCKED"
"""In the environment of the processes that train together with the one that holds the lock."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keeps other jobs out; the system gives the directory free when this process dies, however it dies.

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
    file, holder = run_dir / ".lock", run_dir / ".lock.holder"
    try:
        with FileLock(file, timeout=0):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            os.environ[HELD] = str(run_dir)
            try:
                yield
            finally:
                del os.environ[HELD]
                holder.unlink(missing_ok=True)
    except Timeout:
        who = f" ({holder.read_text()})" if holder.exists() else ""
        raise ConfigError(f"run_dir={run_dir}: another job is at work there{who}; choose another run_dir") from None


def wait_until_free(run_dir: Path) -> None:
    """Returns when no job is at work in the directory."""
    if (run_dir / ".lock").exists():
        with FileLock(run_dir / ".lock"):
            pass
