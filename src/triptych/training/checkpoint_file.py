"""A checkpoint as a file: torch's archive, its SHA-256 in the archive's comment, read as data and never as code."""

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from triptych.config import RunError
from triptych.storage.atomic import replacing

CHECKSUM = b"sha256:"
COMMENT = len(CHECKSUM) + 64
"""Bytes of the comment, which is the end of the file: the digest of everything before it, in hexadecimal."""


def write_checkpoint(checkpoint: Mapping[str, object], path: Path) -> None:
    """Writes the file as a whole or not at all.

    Raises:
        RunError: it cannot be written.
    """
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
        with open(temporary, "rb+") as file:
            # The last two bytes of an archive without a comment are the length of its comment.
            file.seek(-2, 2)
            file.write(COMMENT.to_bytes(2, "little"))
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, 2)
            file.write(CHECKSUM + digest.encode())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint whose checksum is right, in main memory: a GPU has no room for a second optimizer.

    Raises:
        RunError: a damaged file, or one that is no checkpoint.
    """
    if damage := damage_of(path):
        raise RunError(f"{path} is damaged: {damage}")
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RunError(f"{path} is not a checkpoint of plain data ({type(error).__name__})") from None
    return checkpoint


def damage_of(path: Path) -> str | None:
    """What is wrong with the bytes of a checkpoint; None: nothing. (A file without our checksum is held against the
    archive's own, one for each record.)"""
    try:
        with zipfile.ZipFile(path) as archive:
            if not archive.comment.startswith(CHECKSUM):
                record = archive.testzip()
                return None if record is None else f"{record} has another checksum than when it was written"
            written = archive.comment.removeprefix(CHECKSUM).decode(errors="replace")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        if not path.is_file() or not path.stat().st_size:
            return "it is empty"
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"
        return f"it is cut or overwritten ({error})" if is_archive else "it is no archive of torch's"
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        left = path.stat().st_size - COMMENT
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return None if digest.hexdigest() == written else "its SHA-256 is not the one that it was written with"


class CheckpointFiles(CheckpointIO):
    """How the Trainer writes and reads checkpoints.

    Args:
        background: whether a copy of the state is written while training goes on.
    """

    def __init__(self, *, background: bool) -> None:
        self._worker = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: list[Future[None]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Writes it, or has it written as soon as what went before is written."""
        self.wait()  # never more than one copy in memory
        state = copied(checkpoint) if self._worker else checkpoint
        self.after(lambda: write_checkpoint(state, Path(path)))

    def after(self, action: Callable[[], None]) -> None:
        """Does something once everything before is written."""
        if self._worker is None:
            action()
        else:
            self._pending.append(self._worker.submit(action))

    def wait(self) -> None:
        """Returns when everything is written.

        Raises:
            RunError: the checkpoint could not be written.
        """
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads it; never as code, whatever the caller or the environment asks for."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Deletes it."""
        Path(path).unlink(missing_ok=True)


def copied(value: Any) -> Any:
    """The same plain containers with copies of the tensors, in main memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value
