"""Forks ``triptych`` from a process that has imported its modules, which takes seconds.

A child hangs at its first matrix product if its parent has computed with several threads, and cannot use a GPU that its
parent has initialized. So a process that started a thread or has a GPU is not forked.
"""

import atexit
import os
import runpy
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from triptych.launch.signals import STOPS, blocked_signals, reset_handlers, unblock_signals

_threads_of_imports = 0


class Child:
    """A forked child, with the methods of ``subprocess.Popen`` that its parent needs.

    Args:
        pid: process ID.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, or minus the signal that killed the child; None: it is running."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, signum: int) -> None:
        """Sends a signal, unless the child has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signum)


def num_threads() -> int:
    """The number of threads of this process, including those of libraries; 0: this system does not tell."""
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


def note_imports() -> None:
    """Notes that this process has only imported so far."""
    global _threads_of_imports
    _threads_of_imports = num_threads()


def has_only_imported() -> bool:
    """Whether this process has started no thread since ``note_imports``."""
    return 0 < num_threads() <= _threads_of_imports


def forget_exits() -> None:
    """Removes the parent's exit handlers and temporary folder from a child; the parent may end first and clean up."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    if (folder := media_folder()) is not None:
        folder.name = tempfile.mkdtemp("wandb-media")  # the child removes it at exit, by a handler of W&B


def media_folder() -> "tempfile.TemporaryDirectory[str] | None":
    """W&B's temporary folder for images and tables, which its import creates; None: it is not imported."""
    module = sys.modules.get("wandb.sdk.data_types._private")
    return None if module is None else module.MEDIA_TMP


def run_triptych(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Runs ``triptych`` in a child; raises SystemExit.

    Args:
        arguments: arguments of ``triptych``.
        variables: environment variables to set.
    """
    forget_exits()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the parent's progress bar replaced them
    if (threads := variables.get("OMP_NUM_THREADS", "")) != os.environ.get("OMP_NUM_THREADS", ""):
        sys.modules["torch"].set_num_threads(int(threads))  # OpenMP no longer reads the environment
    os.environ.update(variables)
    sys.argv = ["triptych", *arguments]
    runpy.run_module("triptych", run_name="__main__", alter_sys=True)


def fork(function: Callable[[], object]) -> Child:
    """Forks a child that calls a function and exits, with the signal handlers that Python starts with."""
    global _threads_of_imports
    sys.stdout.flush()
    sys.stderr.flush()

    def run() -> object:
        unblock_signals(*STOPS)  # here, so that no exception reaches the parent's code
        return function()

    with blocked_signals(*STOPS):
        pid = os.fork()
        if pid == 0:
            reset_handlers(*STOPS)
            end_with(run)
    _threads_of_imports = min(_threads_of_imports, num_threads())  # without OpenBLAS's
    return Child(pid)


def end_with(main: Callable[[], object]) -> NoReturn:
    """Calls a function in a child and exits like Python, but without freeing the imported modules. That would take two
    seconds, because their memory pages are shared with the parent."""
    code: object = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
