"""Files that are there as a whole or not at all, whenever the process or the machine dies."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triptych.config import RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Takes what is written to a temporary file beside ``path`` for its new content, at the end and at once.

    Processes may write the same file at once: each has a temporary file of its own, and the content of the last stays.
    The bytes are on the disk before the name points to them (Pillai et al. 2014, "All file systems are not created
    equal").

    Args:
        path: the file; what it held stays until the new content is complete.

    Yields:
        The temporary file, in the same directory, since a rename is atomic only within a file system.
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
        failure = None
        temporary.unlink(missing_ok=True)  # before the free bytes are counted
        # torch's writer turns the former into the latter; a RunError says itself what went wrong
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, RunError):
            free = shutil.disk_usage(path.parent).free if path.parent.exists() else 0
            failure = RunError(f"{path} cannot be written ({reason_of(error)}); {free:,} bytes are free there")
        if failure is not None:
            raise failure from error
        raise


def write_text(path: Path, text: str) -> None:
    """The file with this text, as a whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link(source: Path, path: Path) -> None:
    """A second name for a file; a copy where the file system knows no links."""
    temporary = _temporary(path)
    try:
        os.link(source, temporary)
    except OSError:
        with replacing(path) as copy:
            shutil.copyfile(source, copy)
        return
    os.replace(temporary, path)
    temporary.unlink(missing_ok=True)  # where both names are of one file already, a rename does nothing


def remove_leftovers(folder: Path, of: str = "*") -> None:
    """Deletes the temporary files, in a folder and below it, of processes that were killed while they wrote.

    Args:
        folder: nobody writes there now.
        of: the name of the file that they wrote; all by default.
    """
    for file in folder.rglob(f".{of}.*.tmp"):
        file.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """A name beside ``path`` that no other writer has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def reason_of(error: BaseException) -> str:
    """The system's own words for what went wrong, even if torch wrapped them."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
