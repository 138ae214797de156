"""Checkpoint files: PyTorch archives with their SHA-256 in the archive comment, read as data and never as code.

Tested by tests/faults/test_file_faults.py.
"""

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
from triptych.storage.run_directory import check_format

CHECKSUM = b"sha256:"
COMMENT = len(CHECKSUM) + 64
"""Bytes of the comment at the end of the file: the hexadecimal digest of everything before it."""


def write_checkpoint(checkpoint: Mapping[str, object], path: Path) -> None:
    """Writes the file atomically.

    Raises:
        RunError: if it cannot be written.
    """
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
        with open(temporary, "rb+") as file:
            # The last two bytes of an archive without a comment are the comment length.
            file.seek(-2, 2)
            file.write(COMMENT.to_bytes(2, "little"))
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, 2)
            file.write(CHECKSUM + digest.encode())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint into main memory after checking its checksum (a GPU may not fit a second optimizer).

    Raises:
        RunError: if the file is damaged, is no checkpoint, or has the format of another version of Triptych.
    """
    if damage := damage_of(path):
        raise RunError(f"{path} is damaged: {damage}")
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RunError(f"{path} is not a checkpoint of plain data ({type(error).__name__})") from None
    if isinstance(checkpoint, dict) and isinstance(metadata := checkpoint.get("triptych"), dict):
        try:
            check_format(metadata, path)
        except ValueError as error:
            raise RunError(str(error)) from None
    return checkpoint


def damage_of(path: Path) -> str | None:
    """Returns what is damaged in a checkpoint file; None: nothing.

    A file without Triptych's checksum is checked against the archive's own checksum of each record."""
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
    """The checkpoint I/O of the Trainer.

    Args:
        background: whether a copy of the state is written while training continues.
    """

    def __init__(self, *, background: bool) -> None:
        self._worker = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: list[Future[None]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Writes a checkpoint, in the background if configured, after earlier ones are written."""
        self.wait()  # never more than one copy in memory
        state = copied(checkpoint) if self._worker else checkpoint
        self.after(lambda: write_checkpoint(state, Path(path)))

    def after(self, action: Callable[[], None]) -> None:
        """Runs an action after all earlier writes."""
        if self._worker is None:
            action()
        else:
            self._pending.append(self._worker.submit(action))

    def wait(self) -> None:
        """Waits until everything is written.

        Raises:
            RunError: if a checkpoint could not be written.
        """
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads a checkpoint; never as code, regardless of the arguments and the environment."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Deletes a checkpoint."""
        Path(path).unlink(missing_ok=True)


def copied(value: Any) -> Any:
    """Copies plain containers, with copies of their tensors in main memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value
