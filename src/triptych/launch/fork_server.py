"""Forks the jobs of a sweep from one process, so that the imports, which take seconds, run only once.

The server only imports modules, and does not fork if the imports started a thread or initialized a GPU.
"""

import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from hydra.core.plugins import Plugins

from triptych.config.hydra_guard import compose_ahead
from triptych.launch.forks import Child, end_with, media_folder, num_threads, run_triptych
from triptych.launch.signals import STOPS, ignore_signals, restore_handlers
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
"""The modules that a run imports."""
MOST_BYTES = 2**17
"""Maximum size of a message."""


class Forked(Child):
    """A job that the server has forked.

    Args:
        server: server of the job.
        pid: process ID of the job.
    """

    def __init__(self, server: "ForkServer", pid: int) -> None:
        super().__init__(pid)
        self._server = server

    def poll(self) -> int | None:
        """The exit status, or minus the signal that killed the job; None: it is running."""
        return self._server.status_of(self.pid)


class ForkServer:
    """A process that runs ``triptych`` in forked child processes. It ends with the sweep; its children do not.

    Args:
        process: the server.
        channel: socket to the server.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self._process, self._channel = process, channel
        self._ended: dict[int, int] = {}

    def close(self) -> None:
        """Kills the server, even while it imports. (It ignores the signals that stop a sweep.)"""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def start(self, arguments: Sequence[str], streams: tuple[int, int, int]) -> Forked | None:
        """Forks a job; None: the server cannot fork, or has exited.

        Args:
            arguments: arguments of ``triptych``.
            streams: file descriptors of standard input, output and error.
        """
        try:
            socket.send_fds(self._channel, [json.dumps(list(arguments)).encode()], streams)
            while "pid" not in (answer := self._receive()):
                pass
        except (OSError, EOFError):
            return None
        return None if answer["pid"] is None else Forked(self, answer["pid"])

    def wait(self, seconds: float) -> None:
        """Waits until a job ends, or for a number of seconds."""
        if select.select([self._channel], [], [], seconds)[0]:
            with suppress(OSError):
                if not self._channel.recv(1, socket.MSG_PEEK):  # the server has exited
                    time.sleep(seconds)

    def status_of(self, pid: int) -> int | None:
        """See ``Forked.poll``."""
        try:
            while pid not in self._ended and select.select([self._channel], [], [], 0)[0]:
                self._receive()
        except (OSError, EOFError):  # the server was killed; its children continue, but their exit status is lost
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
    """Starts a server. This is not the constructor, because a configuration may build any Triptych class, and must not
    start programs.

    Args:
        python: command of the interpreter.
        environment: environment of the jobs.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [*python, "-m", "triptych.launch.fork_server", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=dict(environment))
    return ForkServer(process, ours)


def serve_forks(channel: socket.socket) -> list[str] | None:
    """Forks a child for each message.

    Returns:
        In a child, its arguments; in the server, None when the sweep has ended.
    """
    # Signals to the whole sweep are for the jobs; without the server, their exit statuses would be lost.
    handlers = ignore_signals(*STOPS)
    is_safe = import_heavy_modules()
    children: dict[int, int] = {}  # by file descriptors that become readable when they end
    while True:
        sources: list[socket.socket | int] = [channel, *children]
        ready, _, _ = select.select(sources, [], [])
        if channel in ready:
            message, streams, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
            if not message:
                return None
            arguments: list[str] = json.loads(message)
            with suppress(Exception):  # the job itself reports errors in its arguments
                compose_ahead(arguments[0], arguments[1:])
            pid = os.fork() if is_safe else None
            if pid == 0:
                channel.close()
                for ended in children:
                    os.close(ended)
                restore_handlers(handlers)
                for stream, given in enumerate(streams):
                    os.dup2(given, stream)
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


def import_heavy_modules() -> bool:
    """Imports the modules of the jobs; returns whether this process can fork: no thread and no GPU was started."""
    gc.disable()  # saves a quarter of the import time
    for name in WITH_THREADS:
        importlib.import_module(name)
    threads = num_threads()
    for name in MODULES:
        importlib.import_module(name)
    Plugins.instance()  # makes Hydra search for its plugins once
    code_sha256()  # part of the keys of all caches
    if (folder := media_folder()) is not None:
        folder.cleanup()  # each child creates its own
    gc.freeze()  # so that no child scans the imported objects and copies their pages
    gc.enable()
    has_gpu = importlib.import_module("torch.cuda").is_initialized()
    return num_threads() == threads and not has_gpu


if __name__ == "__main__":
    arguments = serve_forks(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        end_with(partial(run_triptych, arguments))
