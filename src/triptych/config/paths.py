"""Files and folders that a configuration names.

Tested by tests/planning/test_doctor.py.
"""

import os
import tempfile
from pathlib import Path

from triptych.config import ConfigError, nearest


def check_resume(name: str) -> None:
    """Checks that ``resume`` names an existing file or directory."""
    if not name or not Path(name).exists():
        hint = nearest(name, ["auto", "never"])
        raise ConfigError(f"resume={name}: no such file; expected auto, never, a run directory or a checkpoint{hint}")


def check_writable(key: str, path: Path) -> None:
    """Checks that a path can be written, by creating a temporary file: permissions are not sufficient (for root, or on
    a read-only file system).

    Args:
        key: key of the path in the configuration.
        path: an existing path, or one to create.
    """
    place = existing(path)
    if place.is_file() and place == path:
        place = path.absolute().parent
    if not place.is_dir():
        raise ConfigError(f"{key}={path}: {place} is a file; expected a directory, which need not exist yet")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise ConfigError(f"{key}={path}: {place} is not writable ({reason})") from None


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())
