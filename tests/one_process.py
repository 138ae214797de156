"""Commands one after the other in one process: only the imports are shared. What happens in each is recorded."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from commands import finish

DRIVER = """
import contextlib, io, json, sys, traceback
from triptych.cli import main
from triptych.config import hydra_guard

happened, hooked = [], []

def telling(cls, name):
    original = getattr(cls, name)
    def recorded(*arguments, **options):
        happened.append(name)
        return original(*arguments, **options)
    setattr(cls, name, recorded)

def hook():
    import lightning as L
    import triptych.data
    corpora = ("Dates", "LabelledText", "ParallelText", "PlainText", "QuestionAnsweringCorpus", "TaggedText", "Hub")
    for corpus in corpora:
        telling(getattr(triptych.data, corpus), "splits")
    telling(L.Trainer, "fit")

class Kept(dict):
    "The files of the configurations are the same for all commands: they are composed once."

    def clear(self):
        pass

hydra_guard.composed = Kept()
answers = []
for number, commands in enumerate(json.load(sys.stdin)):
    if number:
        hook()
    for arguments in commands:
        happened.clear()
        sys.argv = ["triptych", *arguments]
        with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
            try:
                status = main()
            except BaseException:
                status = -1
                traceback.print_exc()
        if not number and "torch" in sys.modules:
            happened.append("torch")
        answers.append([status, stderr.getvalue(), list(happened)])
json.dump(answers, sys.stdout)
"""

Answer = tuple[int, str, list[str]]


def answers_to(
    commands: Sequence[Sequence[str]], cwd: Path, before_torch: Sequence[Sequence[str]] = ()
) -> list[Answer]:
    """Of each command: the exit status, the standard error, and whether data was read (splits) and trained on (fit).

    Args:
        commands: the arguments of each.
        cwd: the folder.
        before_torch: of others that come first, in a process that has not imported torch; whether they import it is in
            ``torch``.
    """
    hidden = ("HYDRA_FULL_ERROR", "TRIPTYCH_ALLOW")
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory() as cache:  # of what was kept nothing is read
        environment = {**own, "OMP_NUM_THREADS": "1", "HF_HOME": str(cwd / "hf"), "TRIPTYCH_CACHE": cache}
        if before_torch:
            started = subprocess.run(
                [sys.executable, "-c", DRIVER], cwd=cwd, input=json.dumps([list(before_torch)]), capture_output=True,
                text=True, timeout=900, check=False, env=environment,
            )  # fmt: skip
            assert started.returncode == 0, started.stderr
            answers += [tuple(answer) for answer in json.loads(started.stdout)]
        given = json.dumps([[], list(commands)])
        forked = finish(cwd=cwd, environment=environment, program=DRIVER, stdin=given, seconds=900)
    assert forked.returncode == 0, forked.stderr
    return answers + [tuple(answer) for answer in json.loads(forked.stdout)]
