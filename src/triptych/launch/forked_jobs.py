"""Forks the jobs of a sweep from its process, so that the imports, which take seconds, run only once.

Tested by tests/launch/test_forks.py.
"""

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from hydra.core.plugins import Plugins

from triptych.config.hydra_guard import compose_ahead
from triptych.launch.forks import Child, fork, has_only_imported, media_folder, note_imports, run_triptych
from triptych.launch.sweep import own_program
from triptych.storage.array_files import code_sha256

WITH_THREADS = ("numpy", "scipy.linalg")
"""Modules with OpenBLAS threads, which stop before a fork and restart after it."""
MODULES = (
    "triptych.cli",
    "triptych.train",
    "triptych.evaluate",
    "triptych.predict",
    "triptych.planning.doctor",
    "triptych.report.page.attention_charts",  # imported when the record is written
    "wandb.sdk.launch.inputs.internal",  # imported by wandb.init
)
"""The modules that a job imports."""


@cache
def import_job_modules() -> None:
    """Imports what jobs need into this process, before it forks them."""
    gc.disable()  # saves a quarter of the import time
    for name in WITH_THREADS:
        importlib.import_module(name)
    note_imports()
    for name in MODULES:
        importlib.import_module(name)
    Plugins.instance()  # makes Hydra search for its plugins once
    code_sha256()  # part of the keys of all caches
    if (folder := media_folder()) is not None:
        folder.cleanup()  # each child creates its own
    gc.freeze()  # so that no child scans the imported objects and copies their pages
    gc.enable()


def fork_job(command: Sequence[str], variables: Mapping[str, str], streams: tuple[int, int, int]) -> Child | None:
    """Forks a process that runs a command; None: this process cannot fork, or the command is not ``own_program``.

    Args:
        command: the command with its arguments.
        variables: environment variables that the child sets.
        streams: file descriptors of its standard input, output and error.
    """
    ours = own_program()
    if sys.platform != "linux" or list(command[: len(ours)]) != ours:
        return None
    arguments = command[len(ours) :]
    import_job_modules()
    if not has_only_imported() or sys.modules["torch"].cuda.is_initialized():
        return None
    with suppress(Exception):  # the job itself reports errors in its arguments
        compose_ahead(arguments[0], arguments[1:])

    def run() -> None:
        for stream, given in enumerate(streams):
            os.dup2(given, stream)
        run_triptych(arguments, variables)

    return fork(run)
