"""Forks ``triptych`` and Python programs from a process that has imported what they need, which takes longer than most
of the commands. All workers of the tests connect to it at one address. Each line that they send is a command, answered
by the number of its process. What configurations choose of files is composed here, once for all commands that choose
the same. When a process ends, its exit status and its seconds of CPU are written into the file that the command names.
The server ends with the last connection.

    python tests/preloaded.py ADDRESS
"""

import json
import os
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

# what a run imports on its way, by its longest parts
import pandas  # noqa: F401 - by plotly
import plotly.graph_objs.layout.xaxis
import plotly.io  # noqa: F401
from coverage import process_startup

import triptych.report.page.attention_charts
import triptych.search.page  # noqa: F401
from triptych.cli import main
from triptych.config.hydra_guard import compose_ahead, register_schemas
from triptych.launch.forked_jobs import import_job_modules
from triptych.launch.forks import end_with, forget_exits

ended: dict[int, str] = {}
"""Where to write how a process has ended."""
of_imports: dict[str, str] = {}
"""The variables that modules have set as they were imported."""


def compose(command: str, *arguments: str) -> None:
    """Composes what a command chooses; folders of its own and sweeps are left to it."""
    if command in ("train", "doctor", "evaluate", "predict") and not any(a.startswith("-") for a in arguments):
        with suppress(Exception):  # what is wrong with them the command says
            register_schemas(command, arguments)
            compose_ahead(command, arguments)


def become(arguments: list[str], cwd: str, environment: dict[str, str], files: list[str]) -> None:
    """Gives a forked child the command's arguments, folder, environment and files, in a session of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forget_exits()
    tempfile.tempdir = None  # it is another variable's
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(of_imports | environment)
    sys.path[1:1] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    for number, (name, flags) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        os.dup2(os.open(name, flags | os.O_APPEND), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the old one has read ahead
    process_startup(force=True)  # of coverage.py, under make cases
    sys.argv = [str(Path(sys.executable).with_name("triptych")), *arguments]  # other ranks are started by it


def reap(*_: object) -> None:
    """Writes the exit status of each child that has ended."""
    while ended:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:  # a call that this one has interrupted is about to pop the last child
            return
        if not pid:
            return
        file = Path(ended.pop(pid))
        with suppress(FileNotFoundError):  # the test has removed the folder
            file.with_suffix(".new").write_text(
                json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime])
            )
            file.with_suffix(".new").rename(file)


def start(line: str, sockets: list[socket.socket]) -> int:
    """Forks the process of a command; its number. The process keeps none of the sockets."""
    command = json.loads(line)
    program, file = command.pop("program"), command.pop("ended")
    if program is None:
        compose(*command["arguments"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        for own in sockets:
            os.close(own.fileno())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        become(**command)
        if program is None:
            end_with(main)
        sys.path.insert(0, "")  # as with python -c
        end_with(lambda: exec(program, {"__name__": "__main__"}))
    ended[child] = file
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    return child


def serve(address: str) -> None:
    """Answers all connections, until the last one is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    files = dict[socket.socket, TextIO]()
    while True:
        for ready in select.select([listener, *files], [], [])[0]:
            if ready is listener:
                connection, _ = listener.accept()
                files[connection] = connection.makefile("rw")
            elif line := files[ready].readline():
                files[ready].write(f"{start(line, [listener, *files])}\n")
                files[ready].flush()
            else:
                del files[ready]
                if not files:
                    os.unlink(address)
                    return


if __name__ == "__main__":
    import_job_modules()
    given = {variable.partition("=")[0] for variable in Path("/proc/self/environ").read_text().split("\0")}
    of_imports.update({name: value for name, value in os.environ.items() if name not in given})
    signal.signal(signal.SIGCHLD, reap)
    serve(sys.argv[1])
