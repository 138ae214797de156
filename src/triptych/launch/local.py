"""Runs a sweep on this computer: one process and one directory per job, one at a time or several in parallel."""
# Takes a DictConfig: that of a sweep and its jobs, composed by Hydra and including Hydra's node.

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
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

from triptych.config import ConfigError, about_duration, counted
from triptych.launch.environment import cpus
from triptych.launch.forked_jobs import fork_job
from triptych.launch.forks import Child
from triptych.launch.signals import STOPS, record_signals
from triptych.launch.sweep import Failure, Job, describe_shared, end_sweep, jobs_of, redact_notes, train_command
from triptych.launch.watch import age, share_done, time_left
from triptych.storage.progress import show_progress
from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import RunDirectory

WAIT_S = 0.05
"""Seconds between two checks for jobs that have ended."""
LOOK_S = 1.0
"""Seconds between two updates of the progress bar."""


class LocalJobRunner(Launcher):
    """Runs each job as ``triptych train`` in a separate process: jobs share no state, and a failed job does not affect
    the others. Finished jobs are skipped.

    Args:
        n_jobs: maximum number of parallel jobs; -1: the number of CPUs.
    """

    def __init__(self, *, n_jobs: int) -> None:
        if not isinstance(n_jobs, int) or (n_jobs < 1 and n_jobs != -1):
            raise ConfigError(f"hydra.launcher.n_jobs={n_jobs}: expected at least 1, or -1 for the number of CPUs")
        self._n_jobs = cpus() if n_jobs == -1 else n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Called by Hydra. Runs the jobs, and raises one error at the end that names the failed jobs.

        Returns:
            The directory of each job as its value.

        Raises:
            SweepFailed: jobs failed.
            SystemExit: a signal stopped the sweep.
        """
        jobs = jobs_of(self._context.config_loader, self._config, job_overrides)
        redact = redact_notes(self._config)
        if shared := describe_shared(jobs):
            print(redact(shared), flush=True)
        failures = run_jobs(jobs, train_command(self._config), self._n_jobs, redact)
        return end_sweep(jobs, failures, redact)


def run_jobs(
    jobs: Sequence[Job], command: Sequence[str], n_jobs: int, redact: Redactor, again: str = "the same command again"
) -> dict[Path, Failure]:
    """Runs the unfinished jobs and waits for them. A signal to the sweep is forwarded to them, except SIGINT, because a
    terminal sends Ctrl-C to all processes.

    Args:
        command: command of a job, without its arguments.
        n_jobs: maximum number of parallel jobs.
        again: command that resumes a stopped sweep.

    Returns:
        The failures, by directory.

    Raises:
        SystemExit: a signal stopped the sweep.
    """
    sweep, num_forwarded = Jobs(jobs, n_jobs, redact), 0
    for job in sweep.waiting.values():
        job.announce(redact)
    bar = Bar(sweep)
    with record_signals(*STOPS) as asked, bar.progress:
        while sweep.running or (sweep.waiting and not asked):
            while sweep.waiting and not asked and len(sweep.running) < n_jobs:
                sweep.start_next(command)
            for signum in asked[num_forwarded:]:
                num_forwarded += 1
                for process in sweep.running.values() if signum != signal.SIGINT else ():
                    process.send_signal(signum)
            sweep.look(asked)
            if not asked:
                bar.look()
            time.sleep(WAIT_S)
    if asked:
        print(f"{describe_stop(asked[0], sweep.all.values(), sweep.failures)}. Run {again} to resume.", file=sys.stderr)
        raise SystemExit(128 + asked[0])
    return sweep.failures


class Jobs:
    """The waiting, running and ended jobs of a sweep.

    Args:
        jobs: all jobs; equal ones run once.
        n_jobs: maximum number of parallel jobs.

    Attributes:
        all: jobs by directory, as in the next three.
        waiting: jobs that have not started.
        running: processes of the running jobs.
        failures: failed jobs.
        taken: durations of the successful jobs in seconds.
    """

    def __init__(self, jobs: Sequence[Job], n_jobs: int, redact: Redactor) -> None:
        self.all = {job.directory: job for job in jobs}
        self.waiting: dict[Path, Job] = {}
        self.running: dict[Path, JobProcess] = {}
        self.failures: dict[Path, Failure] = {}
        self.taken: list[float] = []
        self.n_jobs, self._redact = n_jobs, redact
        self._titles: dict[Path, str] = {}
        for number, job in enumerate(jobs, 1):
            title = f"job {number} of {len(jobs)}: {redact(job.title)}"
            if job.is_done:
                print(f"{title}: done already, see {job.directory}", flush=True)
            else:
                self.waiting.setdefault(job.directory, job)
                self._titles.setdefault(job.directory, title)

    def start_next(self, command: Sequence[str]) -> None:
        """Starts the first waiting job."""
        directory, job = next(iter(self.waiting.items()))
        print(f"{self._titles[directory]}\n  -> {directory}", flush=True)
        self.running[directory] = start([*command, *job.arguments], directory, self.n_jobs)
        del self.waiting[directory]

    def look(self, asked: Sequence[signal.Signals]) -> None:
        """Prints the result of each job that has ended.

        Args:
            asked: received signals that stop the sweep.
        """
        for directory, process in list(self.running.items()):
            if (status := process.poll()) is None:
                continue
            del self.running[directory]
            if process.log.exists():  # not where the disk is full
                process.log.write_text(self._redact(process.log.read_text(errors="replace")))
            state = self._note(directory, process, status, asked)
            left = None if asked or not (self.waiting or self.running) else self.seconds_left(self.taken)
            ends = "" if left is None else f"; {about_duration(left)} left"
            if self.n_jobs > 1:
                counts = f"{len(self.running)} running, {len(self.waiting)} waiting{ends}"
                print(f"{self._titles[directory]}: {state} ({counts})", flush=True)
            elif ends:
                done = sum(job.is_done for job in self.all.values())
                print(f"{done} of {counted(len(self.all), 'job')} done{ends}", flush=True)

    def seconds_left(self, durations: Sequence[float]) -> float | None:
        """The seconds until all jobs end; None: unknown.

        Args:
            durations: durations of ended jobs.
        """
        ages = [process.age for process in self.running.values()]
        return time_left(durations, ages, len(self.waiting), self.n_jobs)

    def _note(self, directory: Path, process: "JobProcess", status: int, asked: Sequence[signal.Signals]) -> str:
        """Records the result of a job, and returns it in a word or two."""
        if status and status in [code for signum in asked for code in (128 + signum, -signum)]:
            return "stopped"
        if status or not self.all[directory].is_done:
            how = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
            self.failures[directory] = Failure(how, process.log)
            return f"failed, {how}"
        files = RunDirectory(directory)
        if min(age(files.record), age(files.pruned)) <= process.age:  # not done before
            self.taken.append(process.age)
        return "done"


class Bar:
    """Progress bar of a sweep with parallel jobs, on a terminal; a single job shows its own."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self._looked = jobs, time.monotonic()
        columns = (MofNCompleteColumn(), "jobs", BarColumn(), TimeElapsedColumn(), "{task.fields[left]}")
        # without a thread, because this process forks the jobs
        disable = jobs.n_jobs == 1 or not sys.stdout.isatty()
        self.progress = show_progress(*columns, auto_refresh=False, disable=disable)
        self._task = self.progress.add_task("jobs", total=len(jobs.waiting), left="")

    def look(self) -> None:
        """Updates the bar from the run directories, once per second."""
        if self.progress.disable or time.monotonic() - self._looked <= LOOK_S:
            return
        self._looked, jobs = time.monotonic(), self._jobs
        shares = {directory: share_done(directory) for directory in jobs.running}
        whole = [jobs.running[directory].age / share for directory, share in shares.items() if share > 0]
        left = jobs.seconds_left(jobs.taken or whole)
        rest = "" if left is None else f"{about_duration(left)} left"
        completed = len(jobs.taken) + len(jobs.failures) + sum(shares.values())
        self.progress.update(self._task, completed=completed, left=rest, refresh=True)


def describe_stop(signum: signal.Signals, jobs: Collection[Job], failures: Collection[Path]) -> str:
    """Describes the progress of a sweep that a signal stopped.

    Args:
        jobs: all jobs, each once.
        failures: directories of the failed jobs.
    """
    left = [job for job in jobs if not job.is_done and job.directory not in failures]
    begun = sum(RunDirectory(job.directory).lock.exists() for job in left)
    failed = f", {len(failures)} failed" if failures else ""
    by = "" if signum == signal.SIGINT else f" by {signum.name}"
    return f"stopped{by}: {len(jobs) - len(left) - len(failures)} of {len(jobs)} done, {begun} started{failed}"


class JobProcess:
    """A running job.

    Args:
        log: log file.
        process: process of the job.
        tee: process that writes the log; None: the job does.
    """

    def __init__(
        self, log: Path, process: subprocess.Popen[bytes] | Child, tee: subprocess.Popen[bytes] | None
    ) -> None:
        self.log, self._process, self._tee = log, process, tee
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the job started."""
        return time.monotonic() - self._started

    def poll(self) -> int | None:
        """The exit status, or minus the signal that killed the job; None: it is running."""
        status = self._process.poll()
        if status is not None and self._tee is not None:
            with suppress(subprocess.TimeoutExpired):  # a leftover child of the job may keep it open
                self._tee.wait(5)
        return status

    def send_signal(self, signum: int) -> None:
        """Sends a signal to the job."""
        self._process.send_signal(signum)


def start(command: Sequence[str], directory: Path, n_jobs: int) -> JobProcess:
    """Starts a job. A single job prints to the terminal, and standard error also goes to its log; parallel jobs print
    only to their logs.

    This is not the constructor, because a configuration may build any Triptych class, and must not start programs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log, tee = RunDirectory(directory).job_log, None
    with ExitStack() as opened:
        if n_jobs > 1:
            nothing, file = opened.enter_context(open(os.devnull, "rb")), opened.enter_context(open(log, "ab"))
            streams = (nothing.fileno(), file.fileno(), file.fileno())
        else:
            # in a new session, so that it outlives the signals that stop the job
            both = ["tee", "-a", str(log)]
            tee = subprocess.Popen(both, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True)
            assert tee.stdin is not None
            streams = (0, 1, opened.enter_context(tee.stdin).fileno())
        share = {"OMP_NUM_THREADS": str(max(1, cpus() // n_jobs))} if n_jobs > 1 else {}  # parallel jobs share the CPUs
        variables = {**share, **os.environ}
        process: subprocess.Popen[bytes] | Child | None = fork_job(command, variables, streams)
        if process is None:
            stdin, stdout, stderr = streams
            process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=variables)
    return JobProcess(log, process, tee)
