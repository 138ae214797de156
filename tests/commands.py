"""Commands as a user would call them: processes of their own, but for their imports (see preloaded.py)."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

from clock import wait_until

STARTED = ("HYDRA_", "TRIPTYCH_", "WANDB_", "SLURM_")
"""Variables that are not inherited, but for that of the tests: they are of whoever has started these."""

NAMES = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class Finished:
    """What a command has left on its terminal.

    Attributes:
        seconds: of CPU that it took, without the imports and the processes that it has started and not waited for.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def words(self) -> str:
        """What is on the terminal, as one line: tables break lines anywhere."""
        return " ".join(self.stdout.split())

    def lines(self, level: str) -> int:
        return len(re.findall(rf"^ *{level} ", self.stdout, re.MULTILINE))


def inherited() -> dict[str, str]:
    """The variables that a command has of this process; its modules have set some, too."""
    return {name: os.environ[name] for name in os.environ if not name.startswith(STARTED) or name == "TRIPTYCH_CACHE"}


@cache
def server() -> TextIO:
    """A connection to the process that starts the commands of all workers; the first of them starts it, and it ends
    with the last."""
    address = Path(os.environ["PRELOADED"])
    connection = socket.socket(socket.AF_UNIX)
    with open(address.with_name("preloaded.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except OSError:
            address.unlink(missing_ok=True)
            program = Path(__file__).with_name("preloaded.py")
            subprocess.Popen(
                [sys.executable, program, address],
                env={**inherited(), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            wait_until(lambda: connection.connect_ex(str(address)) == 0, 120, "the server of the commands")
    return connection.makefile("rw")


class Command:
    """A command that runs in a session of its own; the like of ``subprocess.Popen``.

    Attributes:
        pid: of its process.

    Args:
        arguments: after ``triptych``.
        cwd: the folder that it is called in.
        environment: all variables that it has.
        files: its standard input, output and error.
        program: of Python, which has these arguments; None: ``triptych``.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        environment: dict[str, str],
        files: Sequence[Path],
        program: str | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._ended = Path(self._folder.name) / "ended"
        connection = server()
        words = {"arguments": arguments, "cwd": str(cwd), "environment": environment, "files": [*map(str, files)]}
        connection.write(json.dumps({**words, "program": program, "ended": str(self._ended)}) + "\n")
        connection.flush()
        self.pid = int(connection.readline())

    @property
    def returncode(self) -> int | None:
        """Its exit status; None: it runs."""
        return json.loads(self._ended.read_text())[0] if self._ended.exists() else None

    @property
    def seconds(self) -> float:
        """Of CPU, of one that has ended."""
        taken: float = json.loads(self._ended.read_text())[1]
        return taken

    def poll(self) -> int | None:
        """Its exit status; None: it runs."""
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status, as soon as there is one."""
        wait_until(lambda: self.returncode is not None, timeout, "the end of triptych", pause=0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """To the process alone."""
        if self.returncode is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """The process alone."""
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str, cwd: Path, stdin: str = "", variables: dict[str, str] | None = None, seconds: int = 300
) -> Finished:
    """``triptych ARGUMENTS``.

    Args:
        arguments: of the command.
        cwd: the folder that it is called in.
        stdin: what it is given to read.
        variables: of the environment, besides those of the tests.
        seconds: after which it is ended by force.
    """
    # a width at which lines stay whole
    environment = {**inherited(), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(variables or {})}
    return finish(*arguments, cwd=cwd, environment=environment, stdin=stdin, seconds=seconds)


def finish(
    *arguments: str,
    cwd: Path,
    environment: dict[str, str],
    program: str | None = None,
    stdin: str = "",
    seconds: int = 300,
) -> Finished:
    """The end of a ``Command`` with these; see there and at ``run``."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in NAMES]
        for file, text in zip(files, (stdin, "", ""), strict=True):
            file.write_text(text)
        command = Command(*arguments, cwd=cwd, environment=environment, files=files, program=program)
        try:
            status = command.wait(seconds)
        finally:
            command.kill()
        return Finished(status, files[1].read_text(), files[2].read_text(), command.seconds)


def answers_to(commands: Sequence[Sequence[str]], cwd: Path, *variables: dict[str, str]) -> list[Finished]:
    """One after the other.

    Args:
        commands: the arguments of each; ``unlink FILE`` removes a file of the folder between two of them.
        cwd: the folder.
        variables: of the first commands.
    """
    given = [*variables, *[{}] * (len(commands) - len(variables))]
    answers = []
    for arguments, own in zip(commands, given, strict=True):
        if arguments[0] == "unlink":
            (cwd / arguments[1]).unlink()
            continue
        answers.append(run(*arguments, cwd=cwd, variables={"NETRC": str(cwd / "no-netrc"), "COLUMNS": "80", **own}))
    return answers
