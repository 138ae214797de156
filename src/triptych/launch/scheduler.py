"""SLURM's queue: array tasks and their states.

Tested by tests/launch/test_watch.py.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triptych.config import RunError
from triptych.storage.atomic import write_text
from triptych.storage.run_directory import RunDirectory

ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""The states of a task that will not run again."""
AT_WORK = ("RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SUSPENDED")
"""The states of a task that has started; in all other states it waits."""
NONE = "N/A"
"""Printed by squeue for a missing index."""


@dataclass(frozen=True)
class ArrayTask:
    """A task of an array. The random name of the array is written to the run directory before the array is submitted,
    so that it is found again even if this process is killed meanwhile.

    Attributes:
        array: name of the array.
        index: index of the task.
        log: log file of the task.
    """

    array: str
    index: int
    log: Path

    @classmethod
    def noted_in(cls, directory: Path) -> "ArrayTask | None":
        """The latest task of a run; None: it has none.

        Raises:
            RunError: the file is damaged.
        """
        note = RunDirectory(directory).slurm_task
        try:
            content = json.loads(note.read_text(encoding="utf-8"))
            return cls(str(content["array"]), int(content["index"]), Path(content["log"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            raise RunError(
                f"{note} is damaged: expected array, index and log. If squeue shows no job of this run, delete it"
            ) from None

    def note_in(self, directory: Path) -> None:
        """Writes the task to a run directory, with an absolute path of the log."""
        directory.mkdir(parents=True, exist_ok=True)
        content = {"array": self.array, "index": self.index, "log": str(self.log.absolute())}
        write_text(RunDirectory(directory).slurm_task, json.dumps(content))


@dataclass(frozen=True)
class State:
    """The state of a task in the queue.

    Attributes:
        job: job ID of the array.
        name: one of SLURM's states.
        reason: the reason why it waits.
    """

    job: str
    name: str
    reason: str


def ask(*command: str) -> str:
    """The output of a SLURM command. The SLURM variables of a job around this process are not passed on.

    Raises:
        RunError: the command is missing or failed.
    """
    inside = "SLURM_JOB_ID" in os.environ
    own = {k: v for k, v in os.environ.items() if not (inside and k.startswith("SLURM_")) or k == "SLURM_CONF"}
    try:
        return subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}; hydra/launcher=slurm needs SLURM's commands") from None
    except subprocess.CalledProcessError as error:
        said = (line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in error.stderr.splitlines())
        raise RunError(f"{command[0]}: {'; '.join(said)}") from None


def queue(tasks: Iterable[ArrayTask]) -> dict[tuple[str, int], State]:
    """The states of tasks, by array and index. SLURM forgets ended tasks after some minutes.

    Raises:
        RunError: squeue failed.
    """
    keys = {(task.array, task.index) for task in tasks}
    if not keys:
        return {}
    names = ",".join(sorted({array for array, _ in keys}))
    fields = ("--noheader", "--array", "--states=all", "--format=%j|%K|%F|%T|%r")
    # with a user, squeue only reads that user's jobs
    lines = ask("squeue", f"--user={os.getuid()}", f"--name={names}", *fields).splitlines()
    parts = [line.split("|", 4) for line in lines]
    states = {(array, int(index)): State(*state) for array, index, *state in parts if index != NONE}
    # If waiting tasks are cancelled, squeue only keeps the last one, without its index.
    rest = {array: State(*state) for array, index, *state in parts if index == NONE}
    return {**{(array, index): rest[array] for array, index in keys if array in rest}, **states}
