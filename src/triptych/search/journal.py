"""Optuna's journal with recovery from an incomplete last record.

Tested by tests/search/test_optuna_study.py.
"""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from triptych.search.trials import unwritable

BEGIN = b'{"op_code":'
"""Start of each record."""
CHUNK = 2**16
"""Bytes per read, from the end of the file."""

log = logging.getLogger("triptych")


class Journal(JournalFileBackend):
    """A file with a record per line. A full disk, a lost node or a power failure may leave the last record incomplete.
    Optuna would append after it, and could then not read the file.

    Args:
        path: the file; created if needed.

    Raises:
        ValueError: the file does not end in a complete or incomplete record.
    """

    def __init__(self, path: Path) -> None:
        lock = JournalFileSymlinkLock(str(path))
        super().__init__(str(path), lock)
        self._path, self._alone = path, lock
        lock.acquire()
        try:
            self._cut_torn_record()
        finally:
            lock.release()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Called by Optuna, here and in the jobs."""
        lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in logs)
        try:
            self._alone.acquire()
        except OSError as error:
            raise unwritable(self._path, error) from error
        try:
            self._cut_torn_record()
            size = self._path.stat().st_size
            try:
                with open(self._path, "ab") as file:
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                with suppress(OSError):
                    os.truncate(self._path, size)
                raise unwritable(self._path, error) from error
        finally:
            self._alone.release()

    def _cut_torn_record(self) -> None:
        with open(self._path, "rb+") as file:
            start = end = file.seek(0, os.SEEK_END)
            tail = b""
            while start and b"\n" not in tail[:-1]:
                start = max(start - CHUNK, 0)
                file.seek(start)
                tail = file.read()
            last = tail[tail[:-1].rfind(b"\n") + 1 :]
            if not last or is_record(last):
                return
            if not BEGIN.startswith(last.rstrip(b"\n\0")[: len(BEGIN)]):
                raise ValueError("expected an Optuna journal")
            file.truncate(end - len(last))
            os.fsync(file.fileno())
        log.warning("%s: the last record is incomplete; it is removed, and its trial is run again", self._path)


def is_record(line: bytes) -> bool:
    """Whether a line of a journal is a complete record."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n")
