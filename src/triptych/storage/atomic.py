"""Atomic writes: after a crash, a file has either its old or its new content."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triptych.config import RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replaces a file atomically with the content written to a temporary file in the same directory.

    If several processes write the same file, the last one wins. The content is synced to disk before the rename (Pillai
    et al. 2014, "All file systems are not created equal").

    Yields:
        The temporary file.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except BaseException as error:
        temporary.unlink(missing_ok=True)  # before counting the free bytes
        # torch's writer turns an OSError into a RuntimeError; a RunError has its own message
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, RunError):
            free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
            raise RunError(f"{path} cannot be written ({reason_of(error)}); {free:,} bytes are free") from error
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link(source: Path, path: Path) -> None:
    """Creates a hard link, or a copy if the file system does not support links."""
    temporary = _temporary(path)
    try:
        os.link(source, temporary)
    except OSError:
        with replacing(path) as copy:
            shutil.copyfile(source, copy)
        return
    os.replace(temporary, path)
    temporary.unlink(missing_ok=True)  # a rename has no effect if both are links to the same file


def remove_leftovers(folder: Path, of: str = "*") -> None:
    """Deletes the temporary files of killed processes in a folder and its subfolders.

    Args:
        folder: folder to which no process is writing.
        of: name of the written file; default: all.
    """
    for file in folder.rglob(f".{of}.*.tmp"):
        file.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """A unique temporary name in the same directory."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def reason_of(error: BaseException) -> str:
    """The system's error message, even if torch wrapped the exception."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
