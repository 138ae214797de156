"""Several commands in one process, as a user would call each: torch is imported once."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DRIVER = """
import contextlib, io, json, os, sys, time
from triptych.cli import main

answers = []
for arguments, variables in json.load(sys.stdin):
    if arguments[0] == "unlink":
        os.unlink(arguments[1])
        continue
    sys.argv = ["triptych", *arguments]
    os.environ |= variables
    started = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()) as stdout:
        try:
            status = main()
        except SystemExit as end:  # of --help
            status = end.code
    answers.append([status, stdout.getvalue(), stderr.getvalue(), time.process_time() - started])
    for name in variables:
        del os.environ[name]
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True)
class Answer:
    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def words(self) -> str:
        """What is on the terminal, as one line: tables break lines anywhere."""
        return " ".join(self.stdout.split())

    def lines(self, level: str) -> int:
        return len(re.findall(rf"^ *{level} ", self.stdout, re.MULTILINE))


def answers_to(commands: Sequence[Sequence[str]], cwd: Path, *variables: dict[str, str]) -> list[Answer]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("HYDRA_", "TRIPTYCH_", "WANDB_", "SLURM_"))}
    given = [*variables, *[{}] * (len(commands) - len(variables))]
    finished = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=cwd,
        input=json.dumps(list(zip(commands, given, strict=True))),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**own, "OMP_NUM_THREADS": "1", "NETRC": str(cwd / "no-netrc")},
    )
    assert finished.returncode == 0, finished.stderr
    return [Answer(*answer) for answer in json.loads(finished.stdout)]
