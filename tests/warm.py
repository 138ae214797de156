"""``triptych`` without its start: each line of the standard input is a command, answered by a process that is forked
from here, where what a run imports is there already; that takes longer than most of the commands. Prints the exit
status and the seconds of CPU of each."""

import atexit
import json
import os
import signal
import sys
import weakref

from wandb.sdk.data_types._private import MEDIA_TMP

import triptych.doctor
import triptych.evaluate
import triptych.predict
import triptych.train  # noqa: F401
from triptych.cli import main


def become(arguments: list[str], cwd: str, environment: dict[str, str], files: list[str], seconds: int) -> None:
    """Makes this process one that was started with these."""
    signal.alarm(seconds)  # which ends it
    # W&B's directory of temporary files, made when it is imported, is removed once, not after the first command.
    atexit.unregister(MEDIA_TMP.cleanup)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, flags) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        os.dup2(os.open(name, flags), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the old one has read ahead
    sys.argv = ["triptych", *arguments]


for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if child == 0:
        become(**json.loads(line))
        sys.exit(main())
    _, status, usage = os.wait4(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]), flush=True)
