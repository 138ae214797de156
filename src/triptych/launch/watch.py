"""Shows the jobs of a sweep, a study or an array from their run directories, on any computer with access to these. If
squeue is available, it gives the state of SLURM tasks."""

import json
import math
import os
import re
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import yaml  # type: ignore[import-untyped]
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from triptych.config import ConfigError, RunError, about_duration, counted, duration, nearest
from triptych.launch.scheduler import AT_WORK, ENDED, ArrayTask, State, queue
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import SIGNS, RunDirectory, find_directories, read_rows

STATES = {
    "running": "green",
    "failed": "red",
    "stopped": "yellow",
    "queued": "cyan",
    "waiting": "cyan",
    "done": "dim",
    "pruned": "dim",
}
"""The states in display order, with their colours."""
SILENT_S = 900.0
"""Seconds without output after which a job on another host counts as stopped."""
SETTLE_S = 60.0
"""Seconds that a submitted task may take to appear in the queue."""
ASK_S = 10.0
"""Seconds between two calls of squeue."""
STARTING_S = 120.0
"""Seconds that a job may take from its log to its lock, while it imports."""
RECENT = 10
"""Number of rows in metrics.csv that give the rate."""
HASHED = re.compile("-[0-9a-f]{8}$")
"""The suffix of a job directory in a sweep."""
NARROW, WIDE = 72, 120
"""Minimum terminal widths for more than names, states and steps, and for the last lines of the logs."""
OF_SLURM = ("srun: ", "slurmstepd: ")
"""Prefixes of SLURM's own lines at the end of a job."""
TAIL = 16_384
"""Number of bytes at the end of a log or a metrics.csv that are read."""


@dataclass(frozen=True)
class RunStatus:
    """The current state of a run.

    Attributes:
        name: overrides that distinguish a job of a sweep, or the directory relative to the watched folder.
        state: one of ``STATES``.
        steps: completed steps.
        goal: total number of steps; None: not known yet.
        rate: recent steps per second; None: unknown.
        loss: latest training loss.
        ends_in: seconds until the last step; None: unknown.
        line: last line of the log.
        age: seconds since the start; None: not started.
        taken: seconds from the start to the record; None: not done.
    """

    name: str
    state: str
    steps: int
    goal: int | None
    rate: float | None
    loss: float | None
    ends_in: float | None
    line: str
    age: float | None
    taken: float | None


def watch(folder: Path, *, once: bool, every: float) -> None:
    """Shows the runs below a folder until Ctrl-C, and waits for the first one; without a terminal, prints them once.

    Args:
        once: whether to print them only once.
        every: refresh interval in seconds.
    """
    redact, scheduler, finished = Redactor(), Scheduler(), dict[Path, RunStatus]()
    console = Console()
    if once or not sys.stdout.isatty():
        if not (runs := look(folder, redact, scheduler, finished)):
            raise ConfigError(describe_lack(folder))
        console.print(draw(runs, len(runs), console.width))
        return

    def frame() -> Group:
        if runs := look(folder, redact, scheduler, finished):
            return draw(runs, console.height - 7, console.width)
        return Group(Text(describe_lack(folder)), Text("waiting; press Ctrl-C to exit"))

    try:
        with Live(frame(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(frame(), refresh=True)
    except KeyboardInterrupt:
        return


def describe_lack(folder: Path) -> str:
    """The message for a folder without runs."""
    if folder.is_dir():
        return f"{folder}: contains no runs yet; expected a run directory, or a folder of run directories"
    like = nearest(folder.name, [path.name for path in folder.parent.glob("*/")])
    return f"{folder}: no such directory{like or '; expected a run directory, or a folder of run directories'}"


class Scheduler:
    """The SLURM states of runs, cached for some seconds."""

    def __init__(self) -> None:
        self._asked, self._answer = -math.inf, dict[tuple[str, int], State]()

    def states_of(self, directories: Sequence[Path]) -> dict[Path, State | None]:
        """The states of tasks by run directory; None: not in the queue. Runs without a task or of other users are left
        out; all runs if squeue fails."""
        tasks: dict[Path, ArrayTask] = {}
        for directory in directories:
            with suppress(OSError, RunError):  # incomplete, or damaged, which the next sweep reports
                is_mine = RunDirectory(directory).slurm_task.stat().st_uid == os.getuid()
                if is_mine and (task := ArrayTask.noted_in(directory)):
                    tasks[directory] = task
        if not tasks or shutil.which("squeue") is None:
            return {}
        if time.monotonic() - self._asked >= ASK_S:
            try:
                self._answer = queue(tasks.values())
            except RunError:
                return {}
            self._asked = time.monotonic()
        return {directory: self._answer.get((task.array, task.index)) for directory, task in tasks.items()}


def look(folder: Path, redact: Redactor, scheduler: Scheduler, finished: dict[Path, RunStatus]) -> list[RunStatus]:
    """Every run in a folder, sorted by state and then in the order of the sweep.

    Args:
        finished: the runs with a record that were read before, which are not read again; new ones are added.
    """
    every = find_directories(folder, *SIGNS)
    found = sorted(path for path in every if every.isdisjoint(path.parents))  # W&B uses the same names below a run
    found.sort(key=lambda path: job.stat().st_mtime_ns if (job := RunDirectory(path).job).exists() else 0)
    names = name_runs(found, folder)
    tasks = scheduler.states_of([path for path in names if not RunDirectory(path).is_done(is_trial=True)])
    runs = []
    for path, name in names.items():
        is_known = path in finished and RunDirectory(path).record.exists()
        runs.append(replace(finished[path], name=name) if is_known else read(path, name, redact, tasks))
        if runs[-1].state == "done":
            finished[path] = runs[-1]
    return sorted(runs, key=lambda run: [*STATES].index(run.state))


def name_runs(directories: Sequence[Path], folder: Path) -> dict[Path, str]:
    """The displayed name of each run: the overrides that distinguish the jobs of a sweep, otherwise the directory."""
    overrides = {}
    for path in directories:
        if HASHED.search(path.name) and (job := RunDirectory(path).job).exists():
            with suppress(ValueError, LookupError, TypeError):  # still being written
                overrides[path] = json.loads(job.read_text(encoding="utf-8"))["overrides"]
    shared = set.intersection(*map(set, overrides.values())) if len(overrides) > 1 else set()
    own = {path: " ".join(text for text in found if text not in shared) for path, found in overrides.items()}
    return {
        path: own.get(path) or (str(path.relative_to(folder)) if path != folder else path.name) for path in directories
    }


def share_done(directory: Path) -> float:
    """The completed fraction of a run's steps."""
    run = RunDirectory(directory)
    steps, goal = count_steps(run, [*read_rows(run.metrics, TAIL)])
    return steps / goal if goal else 0.0


def count_steps(run: RunDirectory, rows: Sequence[dict[str, str]]) -> tuple[int, int | None]:
    """The completed and the total number of steps of a run; None: not known yet."""
    goal = goal_of(run.config)
    logged = int(rows[-1]["step"]) + 1 if rows else 0
    saved = [int(file.stem.removeprefix("step-")) for file in run.checkpoints.glob("step-*[0-9].ckpt")]
    steps = max([logged, *saved])
    return steps if goal is None else min(steps, goal), goal  # the test is logged after the last step


def read(directory: Path, name: str, redact: Redactor, tasks: Mapping[Path, State | None]) -> RunStatus:
    """Reads the state of a run.

    Args:
        name: displayed name.
        tasks: result of ``Scheduler.states_of``.
    """
    run = RunDirectory(directory)
    log = log_of(run)
    line = redact(last_line(log)) if log else ""
    state = state_of(run, line)
    if directory in tasks and state in ("failed", "stopped", "queued"):
        state, line = state_of_task(run, state, line, tasks[directory])
    rows = [*read_rows(run.metrics, TAIL)]
    steps, goal = count_steps(run, rows)
    rate = rate_of(rows)
    losses = [row["train/loss"] for row in rows if row.get("train/loss")]
    loss = float(losses[-1]) if losses else None
    left = max((goal - steps) / rate, 0.0) if goal is not None and rate and state == "running" else None
    began = age(run.lock)
    since = began if math.isfinite(began) else None
    taken = began - age(run.record) if state == "done" and since is not None else None
    return RunStatus(name, state, steps, goal, rate, loss, left, line, since, taken)


def state_of(run: RunDirectory, line: str) -> str:
    """The state of a run, one of ``STATES``; ``line`` is the last line of its log."""
    if run.pruned.exists():
        return "pruned"
    if run.record.exists():
        return "done"
    if is_held(run):
        return "running"
    if not run.lock.exists():
        if run.slurm_task.exists():
            return "failed" if line.startswith("error:") else "queued"
        if age(run.job_log) < STARTING_S and not line.startswith("error:"):
            return "running"
        if run.job.exists() and not line:
            return "waiting"
    return "failed" if line.startswith("error:") else "stopped"


def state_of_task(run: RunDirectory, state: str, line: str, task: State | None) -> tuple[str, str]:
    """The state of a run without a running job, and the reason, from its SLURM task.

    Args:
        state: state according to the directory.
        line: last line of the log.
        task: SLURM state; None: not in the queue.
    """
    if task is None:
        if state != "queued" or age(run.slurm_task) < SETTLE_S:
            return state, line
        return "stopped", f"not in the queue: {line}" if line else "not in the queue"
    if task.name not in ENDED:
        return ("running" if task.name in AT_WORK else "queued"), line
    if line.startswith("error:"):
        return "failed", line
    ended = "stopped" if task.name in ("CANCELLED", "COMPLETED", "PREEMPTED") else "failed"
    return ended, f"{task.name}: {line}" if line else task.name


def why_failed(directory: Path) -> str:
    """The error message of an unfinished run; empty: none."""
    log = log_of(RunDirectory(directory))
    line = last_line(log) if log else ""
    return Redactor()(line.removeprefix("error:").strip()) if line.startswith("error:") else ""


def is_held(run: RunDirectory) -> bool:
    """Whether a job uses the directory, according to its holder file: trying the lock could make a starting job fail.
    For a job on another host, only the age of its output is known."""
    try:
        holder = run.lock_holder.read_text(encoding="utf-8")
    except OSError:
        return False
    match = re.fullmatch(r"process (\d+) on (.*)", holder)
    if match is None or match[2] != socket.gethostname():
        return min(map(age, (run.metrics, run.log, run.lock_holder))) < SILENT_S
    try:
        with suppress(PermissionError):  # a process of another user
            os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return False
    return True


def age(file: Path) -> float:
    """Seconds since a file was modified; infinity: it does not exist."""
    return time.time() - file.stat().st_mtime if file.exists() else float("inf")


def log_of(run: RunDirectory) -> Path | None:
    """The latest log of a run; None: it has none."""
    logs = [run.job_log, run.log]
    if run.slurm_task.exists():
        with suppress(ValueError, LookupError, TypeError):  # damaged, which the next sweep reports
            logs.append(Path(json.loads(run.slurm_task.read_text(encoding="utf-8"))["log"]))
    return min((log for log in logs if log.is_file() and log.stat().st_size), key=age, default=None)


def last_line(log: Path) -> str:
    """The last non-empty line of a log, without colours and overwritten progress bars."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        text = file.read().decode(errors="replace")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [part.strip() for part in re.split(r"[\r\n]", plain) if part.strip()]
    lines = [line for line in lines if not line.startswith(OF_SLURM)]
    return lines[-1] if lines else ""


def goal_of(config: Path) -> int | None:
    """The total number of steps of a run; None: its configuration is missing or incomplete."""
    try:
        with open(config, encoding="utf-8") as file:
            return int(yaml.load(file, Loader=yaml.CSafeLoader)["trainer"]["max_steps"])
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return None


def rate_of(rows: Sequence[dict[str, str]]) -> float | None:
    """Steps per second in the last rows; jumps back by a resumed run are ignored."""
    clocked = [(int(row["step"]), float(row["elapsed_s"])) for row in rows if row.get("elapsed_s")][-RECENT:]
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clocked) if b[0] >= a[0] and b[1] > a[1]]
    steps, seconds = sum(span[0] for span in spans), sum(span[1] for span in spans)
    return steps / seconds if steps else None


def time_left(taken: Sequence[float], ages: Sequence[float], waiting: int, at_once: int) -> float | None:
    """The estimated seconds until all jobs end, from the mean duration of finished jobs.

    Args:
        taken: durations of finished jobs.
        ages: seconds since the start of each running job.
        waiting: number of jobs that have not started.
        at_once: number of parallel jobs.

    Returns:
        None: no job is finished.
    """
    if not taken:
        return None
    rests = [max(fmean(taken) - age, 0.0) for age in ages]
    return max([*rests, (sum(rests) + waiting * fmean(taken)) / at_once])


def draw(runs: Sequence[RunStatus], most: int, width: int) -> Group:
    """A line with the counts, and a table.

    Args:
        most: maximum number of rows.
        width: width of the terminal.
    """
    counts = Counter(run.state for run in runs)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    head = Text(f"{counted(len(runs), 'run')}: {states}")
    at_work = [run for run in runs if run.state == "running"]
    begin = sum(run.state in ("queued", "waiting") for run in runs)
    taken = [run.taken for run in runs if run.taken is not None]
    left = time_left(taken, [run.age or 0.0 for run in at_work], begin, len(at_work)) if at_work and begin else None
    if left is not None:
        head.append(f"; {about_duration(left)} left")
    elif any(ends := [run.ends_in or 0.0 for run in runs]):
        head.append(f"; {duration(max(ends))} left for the running ones")
    table = Table("run", "state", "steps", *(("steps/s", "loss", "time left") if width >= NARROW else ()), expand=True)
    for column in table.columns[1:]:
        column.no_wrap = True
    table.columns[0].overflow = "fold"
    if width >= WIDE:
        table.add_column("last line of the log", ratio=1, no_wrap=True, overflow="ellipsis")
    shown = runs[: max(most, 1)]
    for run in shown:
        cells: list[str | Text] = [
            Text(run.name),
            Text(run.state, style=STATES[run.state]),
            f"{run.steps:,}" + ("" if run.goal is None else f" of {run.goal:,}"),
            "" if run.rate is None else f"{run.rate:.3g}",
            "" if run.loss is None else f"{run.loss:.4g}",
            "" if run.ends_in is None else duration(run.ends_in) if run.ends_in else "testing",
            Text("" if run.state in ("done", "pruned") else run.line),
        ]
        table.add_row(*cells[: len(table.columns)])
    more = [Text(f"and {counted(len(runs) - len(shown), 'run')} more")] if len(runs) > len(shown) else []
    ended = [run for run in shown if run.state in ("failed", "stopped") and run.line and width < WIDE]
    return Group(head, table, *more, *(Text(f"{run.name} {run.state}: {run.line}") for run in ended))
