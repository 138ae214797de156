"""Workers of pytest, forked from one process that has imported all tests; each worker on its own spends 20 s of CPU on
these imports.

    python tests/forked_workers.py import FD ARGUMENTS: the process that imports and forks
    python tests/forked_workers.py lend ADDRESS: what xdist starts as a worker; passes its standard input, output and
        error to a forked worker, and waits for it
"""

import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn


def start(arguments: list[str]) -> tuple["subprocess.Popen[bytes]", str]:
    """Starts the process that imports the tests and forks; closing its standard input ends it.

    Args:
        arguments: of pytest.

    Returns:
        The process, and the command that xdist starts as a worker.
    """
    address = Path(tempfile.mkdtemp(prefix="triptych-")) / "workers"  # a folder of this user alone
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, "import", str(listener.fileno()), *arguments],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    return process, shlex.join([sys.executable, "-S", __file__, "lend", str(address)])


def lend(address: str) -> None:
    """Passes the standard input, output and error of this process to a forked worker, and waits for it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"-"], [0, 1, 2])
        connection.recv(1)


def serve(listener: socket.socket) -> None:
    """Forks a worker for each connection until standard input ends, then waits for them."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while listener in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            if len(files) == 3 and os.fork() == 0:  # else the other process has ended
                listener.close()
                signal.signal(signal.SIGINT, handler)
                become_worker(files)
        for file in files:
            os.close(file)
    with suppress(ChildProcessError):  # no more children
        while True:
            os.wait()
    shutil.rmtree(os.path.dirname(listener.getsockname()))


def become_worker(files: list[int]) -> NoReturn:
    """Executes the line that execnet sends to each Python that it starts, with these files as standard streams."""
    from triptych.launch.forks import end_with, forget_exits

    forget_exits()
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    end_with(lambda: exec(eval(sys.stdin.readline()), {"__name__": "__main__"}))


if __name__ == "__main__":
    task, place, *given = sys.argv[1:]
    with suppress(KeyboardInterrupt):  # Ctrl-C reaches all processes; the first one reports it
        if task == "lend":
            lend(place)
        else:
            import pytest

            pytest.main([*given, "--collect-only", "-n", "0"])
            serve(socket.socket(fileno=int(place)))
