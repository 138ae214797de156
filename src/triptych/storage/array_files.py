"""Files of arrays in the cache.

Tested by tests/storage/test_locks.py and tests/data/corpora/test_example_cache.py.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from triptych.storage.atomic import replacing

CODE = ("data", "tasks")
"""The packages whose code affects the cached arrays."""
MOST_BYTES = 4 * 2**30
"""Maximum size of a folder; the least recently used files are deleted."""


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file of arrays, and deletes old files if the folder is too large."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type] # none is called allow_pickle
    found = []
    for entry in path.parent.glob("*.npz"):
        with suppress(FileNotFoundError):  # another process has deleted it
            status = entry.stat()
            found.append((status.st_mtime, status.st_size, entry))
    total = 0
    for _, size, entry in sorted(found, reverse=True):
        total += size
        if total > MOST_BYTES and entry != path:
            with suppress(FileNotFoundError, PermissionError):  # or another user owns it
                entry.unlink()


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a file; None: it is missing or damaged (according to the checksums)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
    with suppress(FileNotFoundError, PermissionError):  # another process has deleted it, or another user owns it
        os.utime(path)  # marks it as recently used
    return arrays


def cache_key(*info: Any) -> str:
    """The key of an entry, a hash of the facts and the code."""
    return hashlib.sha256(json.dumps([*info, code_sha256()], sort_keys=True).encode()).hexdigest()


@cache
def code_sha256() -> str:
    """SHA-256 of the code that reads and encodes examples."""
    digest = hashlib.sha256()
    for package in CODE:
        for file in sorted(Path(__file__).parents[1].joinpath(package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
