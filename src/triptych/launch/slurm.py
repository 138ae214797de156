"""Runs a sweep as one SLURM array, with one task per job."""
# Takes a DictConfig: that of a sweep and its jobs, composed by Hydra and including Hydra's node.

import re
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

from triptych.config import ConfigError, RunError, check_type
from triptych.launch.environment import count_devices
from triptych.launch.scheduler import AT_WORK, ENDED, ArrayTask, ask, queue
from triptych.launch.sweep import (
    Failure,
    Job,
    collect,
    describe_shared,
    end_sweep,
    jobs_of,
    redact_notes,
    train_command,
)
from triptych.storage.locks import Lock
from triptych.storage.progress import show_progress
from triptych.storage.redaction import Redactor

UNSETTLED = ("COMPLETED", "NODE_FAIL", "PREEMPTED")
"""States that may not be failures without a summary.json: the file may appear later, or the task may be requeued."""
SETTLE_S = 60.0
"""Seconds to wait for that; a shared file system may be that late."""
GUARD = (
    "trap 'status=$?; [[ $is_set_up ]] || { "
    'echo "error: hydra.launcher.setup ended the job with exit status $status" >&2; '
    "exit $((status ? status : 1)); }' EXIT"
)
"""Precedes the setup lines: if one fails or exits, nothing is trained and the log shows the reason."""


class SlurmJobRunner(Launcher):
    """Submits the unfinished jobs as one array, and optionally waits for them. The array does not depend on this
    process; run the same command again to find it.

    Args:
        partition: partition; None: the cluster's default, also for the next two.
        account: account to charge.
        qos: quality of service.
        nodes: nodes per job.
        tasks_per_node: ranks per node.
        cpus_per_task: CPUs per rank.
        gpus_per_node: GPUs per node; None: not requested.
        mem_gb: memory per node in GiB; None: the cluster's default.
        timeout_min: time limit per job in minutes; None: that of the partition.
        signal_delay_s: seconds before the time limit when a job saves a checkpoint and is requeued.
        array_parallelism: maximum number of jobs that run at the same time.
        setup: shell lines that each job runs before training; the job ends if one fails.
        additional_parameters: further options of sbatch, by long name; null for options without a value.
        wait: whether to wait for all jobs.
        poll_s: seconds between two calls of squeue.
    """

    def __init__(
        self,
        *,
        partition: str | None,
        account: str | None,
        qos: str | None,
        nodes: int,
        tasks_per_node: int,
        cpus_per_task: int,
        gpus_per_node: int | None,
        mem_gb: int | None,
        timeout_min: int | None,
        signal_delay_s: int,
        array_parallelism: int,
        setup: list[str],
        additional_parameters: dict[str, Any],
        wait: bool,
        poll_s: float,
    ) -> None:
        given = dict(locals())
        for name, hint in get_type_hints(SlurmJobRunner.__init__).items():
            if name != "return":
                check_type(f"hydra.launcher.{name}", given[name], hint)
                if hint in (int, int | None, float) and given[name] is not None and given[name] <= 0:
                    raise ConfigError(f"hydra.launcher.{name}={given[name]}: expected more than 0")
        self.nodes, self.tasks_per_node, self.cpus_per_task = nodes, tasks_per_node, cpus_per_task
        self.gpus_per_node, self.array_parallelism = gpus_per_node, array_parallelism
        self.setup_lines, self.wait, self.poll_s = setup, wait, poll_s
        self.options = {
            "partition": partition,
            "account": account,
            "qos": qos,
            "nodes": nodes,
            "ntasks-per-node": tasks_per_node,
            "cpus-per-task": cpus_per_task,
            "gpus-per-node": gpus_per_node,
            "mem": None if mem_gb is None else f"{mem_gb}G",
            "time": timeout_min,
            "signal": f"USR1@{signal_delay_s}",  # without B: sent to the processes, not the script
        }
        self.options = {name: value for name, value in self.options.items() if value is not None}
        own = {*self.options, "job-name", "array", "output", "error", "open-mode", "requeue", "no-requeue", "wrap"}
        for name, value in additional_parameters.items():
            if name in own:
                raise ConfigError(f"hydra.launcher.additional_parameters.{name}: set by the launcher itself")
            self.options[name] = value
        if timeout_min is not None and 60 * timeout_min <= signal_delay_s + 60:
            raise ConfigError(
                f"hydra.launcher.timeout_min={timeout_min}: the warning comes signal_delay_s={signal_delay_s} seconds "
                f"before, or up to a minute earlier; expected at least {(signal_delay_s + 60) // 60 + 1}"
            )
        for name, value in self.options.items():  # each must be one line of the script
            if not re.fullmatch(r"[a-z][a-z-]*", name) or re.search(r"[\s'\"\\#]", "" if value is None else str(value)):
                raise ConfigError(f"hydra.launcher: --{name}={value}: expected an option without spaces and quotes")

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config

    def script(self, jobs: Sequence[Job], array: str, folder: Path, command: Sequence[str]) -> str:
        """The batch script of an array: options, one line per run, and one command.

        Args:
            folder: folder of the logs.
            command: result of ``train_command``.
        """
        if re.search(r"[\s'\"\\#%]", str(folder)):
            raise ConfigError(f"hydra.sweep.dir={folder.parent}: expected a path without spaces, quotes, # and %")
        fixed = {
            "job-name": array,
            "array": f"0-{len(jobs) - 1}%{self.array_parallelism}",
            "output": f"{folder}/%x_%a.log",
            "open-mode": "append",  # a requeued job appends to its log
            "requeue": None,
        }
        options = {**fixed, **self.options}.items()
        runs = [f"  {index}) run=({shlex.join(job.arguments)}) ;;" for index, job in enumerate(jobs)]
        addresses = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        steps = f"srun --kill-on-bad-exit=1 --cpus-per-task={self.cpus_per_task}"  # srun does not inherit it
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options),
            "",
            "case $SLURM_ARRAY_TASK_ID in",
            *runs,
            "esac",
            f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{self.cpus_per_task}}}",
            *([GUARD, "set -e", *self.setup_lines, "set +e", "is_set_up=1"] if self.setup_lines else []),
            *([f"export MASTER_ADDR=${{MASTER_ADDR:-{addresses}}}"] if self.nodes > 1 else []),
            f'{steps} {shlex.join(command)} "${{run[@]}}"',
        ]
        return "\n".join(lines) + "\n"

    def check_layout(self, trainer: DictConfig) -> None:
        """Compares the processes that ``trainer`` needs with those that the launcher requests."""
        if trainer.num_nodes != self.nodes:
            raise ConfigError(f"trainer.num_nodes={trainer.num_nodes}, but hydra.launcher.nodes={self.nodes}")
        devices = trainer.devices
        count = count_devices(devices, self.gpus_per_node or self.tasks_per_node)
        # A single process starts the other ranks of its node itself.
        if self.nodes * self.tasks_per_node > 1 and count != self.tasks_per_node:
            raise ConfigError(f"trainer.devices={devices}, but hydra.launcher.tasks_per_node={self.tasks_per_node}")
        gpus = self.gpus_per_node
        is_asked_otherwise = any(name.startswith(("gpus", "gres")) for name in self.options if name != "gpus-per-node")
        if trainer.accelerator in ("gpu", "cuda") and gpus is None and not is_asked_otherwise:
            raise ConfigError(
                f"trainer.accelerator={trainer.accelerator}, but hydra.launcher.gpus_per_node is null; expected {count}"
            )
        if trainer.accelerator != "cpu" and gpus is not None and gpus != count:
            raise ConfigError(f"trainer.devices={devices}, but hydra.launcher.gpus_per_node={gpus}")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Called by Hydra. Submits the jobs that are neither done nor queued; one error at the end names failed jobs.

        Returns:
            The directory of each job as its value; None if it is not done, without ``wait``.

        Raises:
            SweepFailed: jobs failed.
            SystemExit: Ctrl-C; the array continues.
        """
        jobs = jobs_of(self._context.config_loader, self._config, job_overrides)
        redact = redact_notes(self._config)
        for job in jobs:
            self.check_layout(job.config.trainer)
            if redact(shlex.join(job.arguments)) != shlex.join(job.arguments):
                shown = redact(job.title)
                raise ConfigError(f"{shown}: the batch script would contain a secret. Set it in the environment")
        tasks = self.submit(jobs)
        states = queue(tasks.values())
        if shared := describe_shared(jobs):
            print(redact(shared), flush=True)
        for number, job in enumerate(jobs, 1):
            if job.is_done:
                what = f"done already, see {job.directory}"
            else:
                task = tasks[job.directory]
                state = states.get((task.array, task.index))
                what = (
                    "submitted" if state is None else f"job {state.job}_{task.index} is {state.name}, {job.directory}"
                )
            print(f"job {number} of {len(jobs)}: {redact(job.title)}: {what}", flush=True)
        arrays = " ".join(sorted({state.job for state in states.values()}))
        if any(state.name not in ENDED for state in states.values()):
            print(f"jobs already in the queue keep their options (scancel {arrays} to change them)")
        again = f"run the same command again to see their state and results, or scancel {arrays} to cancel them"
        waiting = [job.directory for job in jobs if not job.is_done]
        if waiting and not self.wait:
            print(f"{len(waiting)} of {len(jobs)} jobs are in the queue; {again}", flush=True)
            return collect(jobs, {}, waiting, redact)
        try:
            failures = wait_for_array(jobs, tasks, self.poll_s)
        except KeyboardInterrupt:
            print(f"the jobs continue; {again}", file=sys.stderr)
            raise SystemExit(130) from None
        return end_sweep(jobs, failures, redact)

    def submit(self, jobs: Sequence[Job]) -> dict[Path, ArrayTask]:
        """Submits the jobs that are neither done nor queued. A lock prevents two commands from submitting them twice.

        Returns:
            The task of each unfinished job, by directory.
        """
        with ExitStack() as locks:
            for parent in sorted({job.directory.parent for job in jobs}):
                parent.mkdir(parents=True, exist_ok=True)
                without = "two commands at the same time may submit the same jobs"
                locks.enter_context(Lock(parent / ".slurm.lock", str(parent), without))
            open_jobs = {job.directory: job for job in jobs if not job.is_done}
            noted = {directory: ArrayTask.noted_in(directory) for directory in open_jobs}
            states = queue([task for task in noted.values() if task])
            tasks = {
                directory: task
                for directory, task in noted.items()
                if task and (state := states.get((task.array, task.index))) and state.name not in ENDED
            }
            new = [job for directory, job in open_jobs.items() if directory not in tasks and not job.is_done]
            if new:
                folder = Path(self._config.hydra.sweep.dir) / "slurm"
                folder.mkdir(parents=True, exist_ok=True)
                array = f"triptych-{secrets.token_hex(4)}"
                script = folder / f"{array}.sbatch"
                script.write_text(self.script(new, array, folder, train_command(self._config)))
                redact = Redactor(OmegaConf.to_container(self._config))
                for index, job in enumerate(new):
                    job.announce(redact)
                    tasks[job.directory] = ArrayTask(array, index, folder / f"{array}_{index}.log")
                    tasks[job.directory].note_in(job.directory)
                try:
                    ask("sbatch", str(script))
                except RunError as error:
                    for job in new:  # read by `triptych watch`
                        tasks[job.directory].log.write_text(f"error: {error}\n", encoding="utf-8")
                    raise
        return tasks


def wait_for_array(jobs: Sequence[Job], tasks: Mapping[Path, ArrayTask], poll_s: float) -> dict[Path, Failure]:
    """Waits until every job is done or has failed, and shows the counts.

    Args:
        tasks: tasks of the unfinished jobs, by directory.
        poll_s: seconds between two calls of squeue.

    Returns:
        The failures, by directory.
    """
    first_seen: dict[Path, float] = {}
    shown = ""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with show_progress(*columns, stderr=False, transient=False) as progress:
        bar = progress.add_task("", total=len(jobs))
        while True:
            try:
                states = queue(tasks.values())
            except RunError as error:
                progress.console.print(f"{error}; trying again", highlight=False)
                time.sleep(poll_s)
                continue
            counts: Counter[str] = Counter()
            failures: dict[Path, Failure] = {}
            for job in jobs:
                if job.is_done:
                    counts["done"] += 1
                    continue
                task = tasks[job.directory]
                state = states.get((task.array, task.index))
                if state is not None and state.name not in ENDED:
                    counts["running" if state.name in AT_WORK else f"pending ({state.reason})"] += 1
                    first_seen.pop(job.directory, None)
                    continue
                end = "not in the queue" if state is None else f"{state.name} as {state.job}_{task.index}"
                since = first_seen.setdefault(job.directory, time.monotonic())
                is_final = state is not None and state.name not in UNSETTLED
                if not is_final and time.monotonic() - since < SETTLE_S:
                    counts["ending"] += 1
                    continue
                counts["failed"] += 1
                failures[job.directory] = Failure(end, task.log)
            line = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
            progress.update(bar, description=line, completed=counts["done"] + counts["failed"])
            if progress.disable and line != shown:
                print(line, flush=True)
            shown = line
            if counts["done"] + counts["failed"] == len(jobs):
                return failures
            time.sleep(poll_s)
