"""Files and folders that a configuration names."""

import os
import tempfile
from pathlib import Path

from triptych.config import ConfigError, nearest


def check_resume(name: str) -> None:
    """The file or directory that ``resume`` names."""
    if not name or not Path(name).exists():
        hint = nearest(name, ["auto", "never"])
        raise ConfigError(f"resume={name}: no such file; expected auto, never, a run directory or a checkpoint{hint}")


def check_writable(key: str, path: Path) -> None:
    """Whether a file or folder can be made here. It is tried with a file that is gone at once: what permissions say is
    not the whole truth (of root, of file systems that are read-only).

    Args:
        key: where the path stands.
        path: of what is to be made, or is there.

    Raises:
        ConfigError: the path cannot be written.
    """
    place = existing(path)
    if place.is_file() and place == path:
        place = path.absolute().parent
    if not place.is_dir():
        raise ConfigError(f"{key}={path}: {place} is a file; expected a directory, there or not")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise ConfigError(f"{key}={path}: {place} cannot be written to ({reason})") from None


def existing(path: Path) -> Path:
    """The path, or the nearest of the folders around it that is there."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())
