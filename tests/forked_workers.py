"""Workers of pytest, forked from one process that has imported all tests; each worker on its own spends 20 s of CPU on
these imports.

    python tests/forked_workers.py import FD ARGUMENTS: the process that imports and forks
    python tests/forked_workers.py lend NAME: what xdist starts as a worker: lends a new one its files until that ends
"""

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress


def start(arguments: list[str]) -> tuple["subprocess.Popen[bytes]", str]:
    """Starts the process that imports the tests and forks; closing its standard input ends it.

    Args:
        arguments: of pytest.

    Returns:
        The process, and the command that xdist starts as a worker.
    """
    name = f"triptych-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")  # in no folder, so there is nothing to remove
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, "import", str(listener.fileno()), *arguments],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    return process, shlex.join([sys.executable, "-S", __file__, "lend", name])


def lend(name: str) -> None:
    """Lends a new worker the standard input, output and error of this process until it ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        socket.send_fds(connection, [b"-"], [0, 1, 2])
        connection.recv(1)


def serve(listener: socket.socket) -> None:
    """Forks a worker for each connection until standard input ends, then waits for them."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while listener in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGINT, handler)
                become_worker(files)
        for file in files:
            os.close(file)
    with suppress(ChildProcessError):  # no more children
        while True:
            os.wait()


def become_worker(files: list[int]) -> None:
    """Does what xdist tells the worker on its standard input."""
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
