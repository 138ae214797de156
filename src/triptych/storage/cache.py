"""A cache for later runs, in the folder of the environment variable TRIPTYCH_CACHE or ~/.cache/triptych.

Tested by tests/storage/test_locks.py and tests/storage/test_cache.py.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from triptych.config import RunError
from triptych.storage.atomic import reason_of, remove_leftovers, write_text
from triptych.storage.locks import Lock

Entry = TypeVar("Entry")

log = logging.getLogger("triptych")


def cache_folder() -> Path:
    """The folder, which may not exist yet."""
    return Path(os.environ.get("TRIPTYCH_CACHE") or "~/.cache/triptych").expanduser()


def get_or_make(path: Path, read: Callable[[], Entry | None], make: Callable[[], Entry]) -> Entry:
    """The result of ``read``, or of ``make`` if there is none. One process makes it while others wait for it; on a file
    system without locks, several processes may make it.

    Args:
        read: reads the entry; None: missing or incomplete.

    Raises:
        RunError: the entry cannot be written.
    """

    def look() -> Entry | None:
        try:
            return read()
        except FileNotFoundError:  # another process has deleted it to free space
            return None

    found = look()
    if found is not None:
        return found
    lock = Lock(f"{path}.lock", str(cache_folder()), "several processes may compute the same entry")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise RunError(
            f"the cache {path.parent} cannot be written ({reason_of(error)}). To use another folder, set the "
            "environment variable TRIPTYCH_CACHE=FOLDER"
        ) from error
    try:
        if lock.is_exclusive:
            remove_leftovers(path.parent, of=path.name)
        found = look()  # another process may have made it meanwhile
        return make() if found is None else found
    finally:
        lock.release()


def get_or_make_best_effort(
    path: Path, what: str, read: Callable[[], Entry | None], make: Callable[[], Entry], write: Callable[[Entry], None]
) -> Entry:
    """Like ``get_or_make``, but only logs a warning if the cache cannot be written.

    Args:
        what: subject and verb of the warning, such as "the tokenizer is".
        read: reads the entry; None: missing or incomplete.
        make: makes the entry.
        write: writes the entry; may raise a RunError.
    """

    def make_and_write() -> Entry:
        made = make()
        try:
            write(made)
        except RunError as error:
            log.warning("%s not cached: %s", what, error)
        return made

    try:
        return get_or_make(path, read, make_and_write)
    except RunError as error:
        log.warning("%s not cached: %s", what, error)
        return make()


def get_file_property(path: Path, question: str, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A cached result about a file, valid until its size or modification time changes.

    Args:
        question: key of the result, with everything else that it depends on.
        answer: computes the result, in plain values.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, question]
    entry = cache_folder() / "files" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()}.json"
    return get_or_make_json(entry, answer)


def get_or_make_json(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A cached result in plain values; see ``get_or_make``."""

    def make_and_write() -> dict[str, Any]:
        made = make()
        write_entry(path, made)
        return made

    return get_or_make(path, lambda: read_entry(path), make_and_write)


def write_entry(path: Path, content: dict[str, Any]) -> None:
    """Writes plain values with a hash of them and of the entry's name.

    Raises:
        RunError: the entry cannot be written.
    """
    write_text(path, json.dumps({"sha256": _sha256_of(path, content), "content": content}))


def read_entry(path: Path) -> dict[str, Any] | None:
    """The values of such an entry; None: it is missing or damaged."""
    entry = read_json_if_valid(path)
    if entry is None or not isinstance(content := entry.get("content"), dict):
        return None
    return content if entry.get("sha256") == _sha256_of(path, content) else None


def _sha256_of(path: Path, content: dict[str, Any]) -> str:
    return hashlib.sha256(f"{path.name} {json.dumps(content)}".encode()).hexdigest()


def read_json_if_valid(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None: it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
