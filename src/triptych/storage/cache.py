"""What is computed once and kept for later runs, in the folder that TRIPTYCH_CACHE names; else ~/.cache/triptych."""

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
    """The folder; it need not be there yet."""
    return Path(os.environ.get("TRIPTYCH_CACHE") or "~/.cache/triptych").expanduser()


def cached(path: Path, read: Callable[[], Entry | None], make: Callable[[], Entry]) -> Entry:
    """What ``read`` finds, or else what ``make`` makes, which one process does while others that want it wait. On a
    file system without locks several processes may make it at once.

    Args:
        read: the entry; None: it is not there, or not whole.

    Raises:
        RunError: it cannot be written.
    """

    def look() -> Entry | None:
        try:
            return read()
        except FileNotFoundError:  # another process is making room
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
            f"the cache {path.parent} cannot be written ({reason_of(error)}); TRIPTYCH_CACHE=FOLDER in the environment "
            "names another"
        ) from error
    try:
        if lock.is_exclusive:
            remove_leftovers(path.parent, of=path.name)
        found = look()  # another process may have made it meanwhile
        return make() if found is None else found
    finally:
        lock.release()


def kept(
    path: Path, what: str, read: Callable[[], Entry | None], make: Callable[[], Entry], write: Callable[[Entry], None]
) -> Entry:
    """Like ``cached``, but a cache that cannot be written costs a warning and nothing else.

    Args:
        what: is kept, for the warning, with its verb: "the tokenizer is".
        read: the entry; None: it is not there, or not whole.
        make: the entry.
        write: keeps it; may raise a RunError.
    """

    def make_and_write() -> Entry:
        made = make()
        try:
            write(made)
        except RunError as error:
            log.warning("%s not kept: %s", what, error)
        return made

    try:
        return cached(path, read, make_and_write)
    except RunError as error:
        log.warning("%s not kept: %s", what, error)
        return make()


def remembered(path: Path, question: str, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found out about a file, for as long as its size and its time of change stay.

    Args:
        question: what is asked, with all that the answer depends on besides the file.
        answer: finds it out; plain values.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, question]
    entry = cache_folder() / "files" / f"{hashlib.sha256(json.dumps(state).encode()).hexdigest()}.json"

    def make() -> dict[str, Any]:
        found = answer()
        write_text(entry, json.dumps(found))
        return found

    return cached(entry, lambda: read_json(entry), make)


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a file; None: there is none, or it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
