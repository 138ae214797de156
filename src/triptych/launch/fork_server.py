"""The jobs of a sweep, forked from one process that has imported what they need: seconds that are spent once.

A child of a process that has computed something with several threads hangs at its first product of matrices. So the
server imports and does nothing else, and where that has begun a thread or a GPU it refuses to fork.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from hydra.core.plugins import Plugins

from triptych.config.hydra_guard import compose_ahead
from triptych.launch.signals import STOPS, ignore_signals, restore_handlers
from triptych.storage.arrays import code_sha256

WITH_THREADS = ("numpy", "scipy.linalg")
"""Modules whose threads, of OpenBLAS, end before a fork and come back after it."""
MODULES = (
    "triptych.cli",
    "triptych.train",
    "triptych.evaluate",
    "triptych.predict",
    "triptych.planning.doctor",
    "triptych.report.page.attention",  # by the record of a training
    "wandb.sdk.launch.inputs.internal",  # by wandb.init
)
"""What a training imports before it begins."""
MOST_BYTES = 2**17
"""Of a message."""


class Forked:
    """A forked job, as far as a sweep needs it: what a ``subprocess.Popen`` says.

    Args:
        server: its parent.
        pid: of the job.
    """

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server, self._pid = server, pid

    def poll(self) -> int | None:
        """Its exit status, negative for the signal that killed it; None while it runs."""
        return self._server.status_of(self._pid)

    def send_signal(self, signum: int) -> None:
        """Tells it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(self._pid, signum)


class ForkServer:
    """A process that runs ``triptych`` in children of its own. It ends with its sweep; its children do not.

    Args:
        process: that serves.
        channel: to it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self._process, self._channel = process, channel
        self._ended: dict[int, int] = {}

    def close(self) -> None:
        """Ends it, even where it still imports. (What asks a sweep to end, it does not hear.)"""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def start(self, arguments: Sequence[str], streams: tuple[int, int, int]) -> Forked | None:
        """Forks a job; None: this process cannot be forked, or is gone.

        Args:
            arguments: of ``triptych``.
            streams: what its standard input, output and error are.
        """
        try:
            socket.send_fds(self._channel, [json.dumps(list(arguments)).encode()], streams)
            while "pid" not in (answer := self._receive()):
                pass
        except (OSError, EOFError):
            return None
        return None if answer["pid"] is None else Forked(self, answer["pid"])

    def wait(self, seconds: float) -> None:
        """Until a job has ended, at most so long."""
        if select.select([self._channel], [], [], seconds)[0]:
            with suppress(OSError):
                if not self._channel.recv(1, socket.MSG_PEEK):  # the server is gone
                    time.sleep(seconds)

    def status_of(self, pid: int) -> int | None:
        """See ``Forked.poll``."""
        try:
            while pid not in self._ended and select.select([self._channel], [], [], 0)[0]:
                self._receive()
        except (OSError, EOFError):  # somebody has killed it; its children go on, and nobody hears how they end
            if not os.path.exists(f"/proc/{pid}"):
                self._ended[pid] = 0
        return self._ended.get(pid)

    def _receive(self) -> dict[str, int | None]:
        message = self._channel.recv(MOST_BYTES)
        if not message:
            raise EOFError
        answer: dict[str, int | None] = json.loads(message)
        if (ended := answer.get("ended")) is not None:
            self._ended[ended] = os.waitstatus_to_exitcode(answer["status"] or 0)
        return answer


def start_server(python: Sequence[str], environment: Mapping[str, str]) -> ForkServer:
    """Starts a server. A function, and not the constructor: configurations may name classes of ours, and must not start
    programs.

    Args:
        python: the command of the interpreter.
        environment: of the jobs, in place of this process's.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [*python, "-m", "triptych.launch.fork_server", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(environment))
    return ForkServer(process, ours)


def serve(channel: socket.socket) -> list[str] | None:
    """Forks a child for each message.

    Returns:
        In a child, its arguments; None: the sweep has ended.
    """
    # A signal to all of a sweep is for the jobs: without this process nobody would hear how they end.
    handlers = ignore_signals(*STOPS)
    is_safe = load()
    children: dict[int, int] = {}  # by what can be read when they have ended
    while True:
        sources: list[socket.socket | int] = [channel, *children]
        ready, _, _ = select.select(sources, [], [])
        if channel in ready:
            message, streams, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
            if not message:
                return None
            arguments: list[str] = json.loads(message)
            with suppress(Exception):  # what is wrong with them the job says
                compose_ahead(arguments[0], arguments[1:])
            pid = os.fork() if is_safe else None
            if pid == 0:
                channel.close()
                for ended in children:
                    os.close(ended)
                restore_handlers(handlers)
                for stream, given in enumerate(streams):
                    os.dup2(given, stream)
                forget_exits()
            for given in streams:
                os.close(given)
            if pid == 0:
                return arguments
            channel.send(json.dumps({"pid": pid}).encode())
            if pid is not None:
                children[os.pidfd_open(pid)] = pid
        for ended in children.keys() & {*ready}:
            pid, status = os.waitpid(children.pop(ended), 0)
            os.close(ended)
            channel.send(json.dumps({"ended": pid, "status": status}).encode())


def load() -> bool:
    """Imports what the jobs need. Says whether this process can be forked: neither a thread nor a GPU has begun."""
    gc.disable()  # a quarter of the imports' time
    for name in WITH_THREADS:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    for name in MODULES:
        importlib.import_module(name)
    Plugins.instance()  # Hydra looks for its plugins once
    code_sha256()  # which names all that is kept
    media_folder().cleanup()  # each child makes its own
    gc.freeze()  # what is imported is never garbage: no child looks at it, nor copies its pages
    gc.enable()
    has_gpu = importlib.import_module("torch.cuda").is_initialized()
    return len(os.listdir("/proc/self/task")) == threads and not has_gpu


def media_folder() -> "tempfile.TemporaryDirectory[str]":
    """Where W&B prepares pictures and tables; its import makes the folder."""
    folder: tempfile.TemporaryDirectory[str] = importlib.import_module("wandb.sdk.data_types._private").MEDIA_TMP
    return folder


def forget_exits() -> None:
    """In a child: what the parent cleans up is not the child's to clean up, nor to use: the parent may end before."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    media_folder().name = tempfile.mkdtemp("wandb-media")  # which the child removes at its end, as W&B has asked


def end_with(main: Callable[[], object]) -> NoReturn:
    """Calls a function in a child and ends as Python does after it, but does not free all that was imported: two
    seconds, for each page of it is shared with the process that this one was forked from."""
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


def can_fork() -> bool:
    """Whether this system has what a server needs."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/task") and hasattr(os, "pidfd_open")


if __name__ == "__main__":
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = ["triptych", *arguments]
        end_with(lambda: runpy.run_module("triptych", run_name="__main__", alter_sys=True))
