"""SLURM's queue: the tasks of arrays, and what the scheduler says of them."""

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
"""The states in which a task will not run any more."""
AT_WORK = ("RUNNING", "COMPLETING", "STAGE_OUT", "STOPPED", "SUSPENDED")
"""The states in which it has begun; in all others it waits."""
NONE = "N/A"
"""What squeue prints in place of an index."""


@dataclass(frozen=True)
class ArrayTask:
    """The place of a job in an array. Its name is drawn before the array is submitted, and noted in the run directory:
    so the array is found again even if this process dies while it submits.

    Attributes:
        array: name of the array.
        index: in the array.
        log: what the task prints.
    """

    array: str
    index: int
    log: Path

    @classmethod
    def noted_in(cls, directory: Path) -> "ArrayTask | None":
        """The task to which a run was given last.

        Raises:
            RunError: the note is damaged.
        """
        note = RunDirectory(directory).slurm_task
        try:
            content = json.loads(note.read_text(encoding="utf-8"))
            return cls(str(content["array"]), int(content["index"]), Path(content["log"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            raise RunError(
                f"{note} is damaged: expected array, index and log; delete it once squeue shows no job of this run"
            ) from None

    def note_in(self, directory: Path) -> None:
        """Writes it down, with a log that is found from any folder."""
        directory.mkdir(parents=True, exist_ok=True)
        content = {"array": self.array, "index": self.index, "log": str(self.log.absolute())}
        write_text(RunDirectory(directory).slurm_task, json.dumps(content))


@dataclass(frozen=True)
class State:
    """What the scheduler says of a task.

    Attributes:
        job: number of the array.
        name: one of SLURM's states.
        reason: why it waits.
    """

    job: str
    name: str
    reason: str


def ask(*command: str) -> str:
    """What a command of SLURM prints. What a job in which this process may run has told it is not told to it.

    Raises:
        RunError: there is no such command, or it fails.
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
    """What the scheduler says of tasks, by array and index; those that have ended are forgotten after some minutes.

    Raises:
        RunError: SLURM does not answer.
    """
    keys = {(task.array, task.index) for task in tasks}
    if not keys:
        return {}
    names = ",".join(sorted({array for array, _ in keys}))
    fields = ("--noheader", "--array", "--states=all", "--format=%j|%K|%F|%T|%r")
    # asked for one user, it looks at that user's jobs only
    lines = ask("squeue", f"--user={os.getuid()}", f"--name={names}", *fields).splitlines()
    parts = [line.split("|", 4) for line in lines]
    states = {
        (array, int(index)): State(job, name, reason) for array, index, job, name, reason in parts if index != NONE
    }
    # Of tasks that are cancelled while they wait, squeue forgets all but the last, and that one's index.
    rest = {array: State(job, name, reason) for array, index, job, name, reason in parts if index == NONE}
    return {**{(array, index): rest[array] for array, index in keys if array in rest}, **states}
