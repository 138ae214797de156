"""Caches the output of ``--help``, because composing a configuration is slow."""

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from triptych import config
from triptych.config import RunError
from triptych.storage.cache import cache_folder, get_or_make_json


def kept_help(command: str, arguments: Sequence[str], print_help: Callable[[], object]) -> str:
    """The help text, cached until a file in conf/ or ``triptych.config`` changes; not cached with ``--config-dir``.

    Args:
        command: sub-command.
        arguments: arguments of the command line.
        print_help: prints the text.
    """

    def make() -> dict[str, str]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            print_help()
        return {"text": printed.getvalue()}

    if any(argument.startswith(("--config-dir", "-cd")) for argument in arguments):
        return make()["text"]
    state = [
        (str(file), status.st_mtime_ns, status.st_size)
        for folder in (Path(str(files("triptych.conf"))), Path(str(config.__file__)).parent)
        for file in sorted(folder.rglob("*.[yp]*"))
        if not file.name.endswith(".pyc") and (status := file.stat())
    ]
    name = hashlib.sha256(json.dumps([command, *arguments, state]).encode()).hexdigest()
    try:
        return str(get_or_make_json(cache_folder() / "help" / f"{name}.json", make)["text"])
    except RunError:
        return make()["text"]
