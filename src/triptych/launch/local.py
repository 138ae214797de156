"""A sweep on this machine: one process and one directory for each job, one after the other or several at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from triptych.config import ConfigError, counted, duration
from triptych.launch.environment import cpus
from triptych.launch.fork_server import Forked, ForkServer, can_fork, start_server
from triptych.launch.sweep import Failure, Job, collect, jobs_of, own_program, own_python, redact_notes, train_command
from triptych.launch.watch import share_done, time_left
from triptych.storage.redaction import Redactor

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a sweep to end."""
LOOK_S = 1.0
"""Seconds between two looks at how far the jobs are."""


class LocalLauncher(Launcher):
    """Runs each job as ``triptych train`` in a process of its own: nothing leaks from one run into the next, and a run
    that fails takes no other along. Jobs that are done are not run again.

    Args:
        n_jobs: the most jobs that run at once; -1: as many as there are CPUs.

    Raises:
        ConfigError: no such number.
    """

    def __init__(self, *, n_jobs: int) -> None:
        if not isinstance(n_jobs, int) or (n_jobs < 1 and n_jobs != -1):
            raise ConfigError(f"hydra.launcher.n_jobs={n_jobs}: expected 1 or more, or -1 for as many as CPUs")
        self._n_jobs = cpus() if n_jobs == -1 else n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; the one error at the end names those that failed.

        Args:
            initial_job_idx: number of the first.

        Returns:
            For each job its directory as the value.

        Raises:
            SweepFailed: jobs failed.
            SystemExit: a signal asked the sweep to end.
        """
        jobs = jobs_of(self._context.config_loader, self._config, job_overrides)
        redact = redact_notes(self._config)
        failures = run_jobs(jobs, train_command(self._config), self._n_jobs, redact)
        return collect(jobs, failures, [], redact)


def run_jobs(
    jobs: Sequence[Job], command: Sequence[str], n_jobs: int, redact: Redactor, again: str = "the same command"
) -> dict[Path, Failure]:
    """Runs those that are not done, and waits for them even where the sweep is asked to end: they are then asked
    too. (Of a Ctrl-C the terminal tells all, and a job must hear of it once.)

    Args:
        command: what runs a job, before its arguments.
        n_jobs: the most jobs that run at once.
        again: what goes on with a sweep that was asked to end.

    Returns:
        Those that failed, by their directories.

    Raises:
        SystemExit: a signal asked the sweep to end.
    """
    waiting: dict[Path, Job] = {}  # of two equal jobs, one
    titles: dict[Path, str] = {}
    for number, job in enumerate(jobs, 1):
        title = f"job {number} of {len(jobs)}: {redact(job.title)}"
        if job.is_done:
            print(f"{title}: done already, see {job.directory}", flush=True)
        else:
            waiting.setdefault(job.directory, job)
            titles.setdefault(job.directory, title)
    by_directory = {job.directory: job for job in jobs}
    for job in waiting.values():
        job.announce(redact)
    failures: dict[Path, Failure] = {}
    running: dict[Path, JobProcess] = {}
    taken: list[float] = []
    asked: list[signal.Signals] = []
    told = 0
    before = {signum: signal.signal(signum, lambda n, _: asked.append(signal.Signals(n))) for signum in STOPS}
    columns = (
        MofNCompleteColumn(),
        TextColumn("jobs"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    is_shown = n_jobs > 1 and sys.stderr.isatty() and sys.stdout.isatty()  # alone a job has a bar of its own
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_shown)
    bar = progress.add_task("jobs", total=len(waiting), left="")
    progress.start()
    server = server_for(command, len(waiting), n_jobs)
    looked = time.monotonic()
    try:
        while running or (waiting and not asked):
            while waiting and not asked and len(running) < n_jobs:
                directory, job = next(iter(waiting.items()))
                print(f"{titles[directory]}\n  -> {directory}", flush=True)
                running[directory] = start([*command, *job.arguments], directory, n_jobs, server)
                del waiting[directory]
            for signum in asked[told:]:
                told += 1
                for process in running.values() if signum != signal.SIGINT else ():
                    process.send_signal(signum)
            for directory, process in list(running.items()):
                if (status := process.poll()) is None:
                    continue
                del running[directory]
                if process.log.exists():  # not where the disk is full
                    process.log.write_text(redact(process.log.read_text(errors="replace")))
                if status and status in [code for signum in asked for code in (128 + signum, -signum)]:
                    state = "stopped"
                elif status or not by_directory[directory].is_done:
                    how = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
                    failures[directory], state = Failure(how, process.log), f"failed, {how}"
                else:
                    state = "done"
                    taken.append(process.age)
                ages = [other.age for other in running.values()]
                left = time_left(taken, ages, len(waiting), n_jobs)
                ends = (
                    "" if left is None or asked or not (waiting or running) else f"; all end in about {duration(left)}"
                )
                if n_jobs > 1:
                    counts = f"{len(running)} running, {len(waiting)} waiting{ends}"
                    print(f"{titles[directory]}: {state} ({counts})", flush=True)
                elif ends:
                    done = sum(job.is_done for job in by_directory.values())
                    print(f"{done} of {counted(len(by_directory), 'job')} done{ends}", flush=True)
            if is_shown and not asked and time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                shares = {directory: share_done(directory) for directory in running}
                ages = [process.age for process in running.values()]
                whole = [running[directory].age / share for directory, share in shares.items() if share > 0]
                left = time_left(taken or whole, ages, len(waiting), n_jobs)
                about = "" if left is None else f"about {duration(left)} left"
                progress.update(bar, completed=len(taken) + len(failures) + sum(shares.values()), left=about)
            time.sleep(0.05)
    finally:
        progress.stop()
        if server is not None:
            server.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        print(
            f"{describe_stop(asked[0], by_directory.values(), failures)}; {again} goes on from there", file=sys.stderr
        )
        raise SystemExit(128 + asked[0])
    return failures


def describe_stop(signum: signal.Signals, jobs: Collection[Job], failures: Collection[Path]) -> str:
    """How far a sweep was that a signal has ended.

    Args:
        jobs: all of them, each once.
        failures: directories of those that failed.
    """
    left = [job for job in jobs if not job.is_done and job.directory not in failures]
    begun = sum((job.directory / ".lock").exists() for job in left)
    failed = f", {len(failures)} failed" if failures else ""
    by = "" if signum == signal.SIGINT else f" by {signum.name}"
    return f"stopped{by}: {len(jobs) - len(left) - len(failures)} of {len(jobs)} done, {begun} begun{failed}"


class JobProcess:
    """A job that runs.

    Args:
        log: what it says.
        process: the job.
        tee: what writes its log; None: it does that itself.
    """

    def __init__(
        self, log: Path, process: subprocess.Popen[bytes] | Forked, tee: subprocess.Popen[bytes] | None
    ) -> None:
        self.log, self._process, self._tee = log, process, tee
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def poll(self) -> int | None:
        """Its exit status, negative for the signal that killed it; None while it runs."""
        status = self._process.poll()
        if status is not None and self._tee is not None:
            with suppress(subprocess.TimeoutExpired):  # something that the job has left behind may hold it
                self._tee.wait(5)
        return status

    def send_signal(self, signum: int) -> None:
        """Tells it."""
        self._process.send_signal(signum)


def server_for(command: Sequence[str], num_waiting: int, n_jobs: int) -> ForkServer | None:
    """What several jobs are forked from; None: each is started by itself.

    Args:
        command: what runs a job; none but our own can be forked.
        num_waiting: how many there are.
        n_jobs: the most jobs that run at once.
    """
    ours = own_program()
    if num_waiting < 2 or not can_fork() or list(command[: len(ours)]) != ours:
        return None
    return start_server(own_python(), environment(n_jobs))


def environment(n_jobs: int) -> dict[str, str]:
    """Of the jobs: several that run at once share the CPUs.

    Args:
        n_jobs: the most jobs that run at once.
    """
    share = {"OMP_NUM_THREADS": str(max(1, cpus() // n_jobs))} if n_jobs > 1 else {}
    return {**share, **os.environ}


def start(command: Sequence[str], directory: Path, n_jobs: int, server: ForkServer | None) -> JobProcess:
    """Starts a job. Alone it has the terminal, and what it says on standard error goes to its log too; of several, each
    has its log only.

    A function, and not the constructor: configurations may name classes of ours, and must not start programs.

    Args:
        n_jobs: the most jobs that run at once.
        server: what it is forked from, if that can be.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log, tee = directory / "terminal.log", None
    with ExitStack() as opened:
        if n_jobs > 1:
            nothing, file = opened.enter_context(open(os.devnull, "rb")), opened.enter_context(open(log, "ab"))
            streams = (nothing.fileno(), file.fileno(), file.fileno())
        else:
            # in a session of its own, for it has to outlive the signals that end the job
            both = ["tee", "-a", str(log)]
            tee = subprocess.Popen(both, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True)
            assert tee.stdin is not None
            streams = (0, 1, opened.enter_context(tee.stdin).fileno())
        process: subprocess.Popen[bytes] | Forked | None = None
        if server is not None:
            process = server.start(command[len(own_program()) :], streams)
        if process is None:
            stdin, stdout, stderr = streams
            process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment(n_jobs))
    return JobProcess(log, process, tee)
