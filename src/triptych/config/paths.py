"""Files and folders that a configuration names."""

import os
import shlex
import tempfile
from pathlib import Path

from triptych.config import ConfigError, nearest


def check_resume(name: str) -> None:
    """The file or directory that ``resume`` names.

    Raises:
        ConfigError: there is no such file or directory.
    """
    if not name or not Path(name).exists():
        hint = nearest(name, ["auto", "never"])
        raise ConfigError(f"resume={name}: no such file; expected auto, never, a run directory or a checkpoint{hint}")


def find_checkpoint(path: str | Path, key: str = "checkpoint") -> Path:
    """The checkpoint itself, or the last one of a run directory. Whether it is damaged is another matter.

    Args:
        key: where it stands.

    Raises:
        ConfigError: there is no checkpoint.
    """
    if "://" in str(path):
        raise ConfigError(f"{key}={path}: expected a file or a run directory; download it first")
    path = Path(path)
    if (path / "config.json").is_file():
        command = f"triptych import {shlex.quote(str(path))} --output CHECKPOINT"
        raise ConfigError(f"{key}={path} is a Hugging Face folder: {command} first")
    if path.suffix == ".safetensors":
        raise ConfigError(f"{key}={path} holds weights alone; expected a checkpoint or a run directory")
    if path.is_dir():
        runs = sorted(str(file.parents[1]) for file in path.glob("*/checkpoints/last.ckpt"))
        path = path / "checkpoints" / "last.ckpt"
        if runs and not path.is_file():
            raise ConfigError(f"{key}={path.parents[1]}: holds {len(runs)} runs; choose one: {', '.join(runs)}")
    if not path.is_file():
        siblings = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        like = nearest(str(path), siblings)
        raise ConfigError(f"{key}={path}: no such file{like or '; expected a run directory or a checkpoint'}")
    return path


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
