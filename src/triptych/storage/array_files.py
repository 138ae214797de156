"""Files of arrays in the cache.

Tested by tests/storage/test_cache.py and tests/data/corpora/test_example_cache.py.
"""

import hashlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from triptych.config import RunError
from triptych.storage.atomic import replacing

log = logging.getLogger("triptych")

CODE = ("data", "tasks")
"""The packages whose code affects the cached arrays."""
END_OF_ZIP = struct.Struct("<4s4H2LH")
"""The last record of a zip file without a comment; the fifth field is the number of files."""
MOST_BYTES = 4 * 2**30
"""Maximum size of a folder; the least recently used files are deleted."""


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file of arrays, and deletes old files if the folder is too large.

    Raises:
        RunError: it cannot be written.
    """
    needed, free = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(path.parent).free
    if needed > free:
        raise RunError(f"{path} cannot be written: it needs {needed:,} bytes; {free:,} are free")
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
    """The arrays of a file, mapped into memory; None: it is missing or damaged (according to the checksums)."""
    try:
        with ZipFile(path) as archive, open(path, "rb") as file:
            if archive.testzip() is not None:
                raise BadZipFile("a checksum differs")
            arrays = {entry.filename.removesuffix(".npy"): _map(file, entry) for entry in archive.infolist()}
            file.seek(-END_OF_ZIP.size, os.SEEK_END)
            if END_OF_ZIP.unpack(file.read())[4] != len(arrays):
                raise BadZipFile("an array is missing")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, BadZipFile, RuntimeError, struct.error) as error:  # as zipfile raises them
        log.warning("%s is damaged (%s), and is made again", path, error)
        return None
    with suppress(OSError):  # deleted by another process, of another user, or read-only
        os.utime(path)  # marks it as recently used
    return arrays


def _map(file: BinaryIO, entry: ZipInfo) -> np.ndarray:
    """An array that is stored in an archive without compression."""
    file.seek(entry.header_offset + 26)
    length_of_name, length_of_extra = struct.unpack("<HH", file.read(4))
    file.seek(length_of_name + length_of_extra, os.SEEK_CUR)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("objects are not read")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", file.tell(), shape)


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
