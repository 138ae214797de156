"""Sweeps as arrays of a real scheduler: ``hydra/launcher=slurm``."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from clock import bound, check_within, wait_until
from commands import run
from triptych.launch.watch import Scheduler, look
from triptych.storage.redaction import Redactor

pytestmark = pytest.mark.faults

SLOW = "+callbacks.recording.seconds=[0.5]"


class Sweep:
    """``triptych train -m hydra/launcher=slurm`` in the folder of a training, as often as a test likes.

    Attributes:
        parent: of the run directories.
    """

    def __init__(self, cluster: Any, training: Any) -> None:
        training.run_dir = training.folder / "läufe, (a='1') #2"  # what Hydra and the shell read only in quotes
        self.cluster, self.training, self.parent = cluster, training, training.run_dir

    def command(self, *overrides: str) -> list[str]:
        """Its words behind ``triptych``."""
        command = self.training.command("callbacks.recording.folder=${run_dir}", *overrides)
        own = command[command.index("train") + 1 :]
        return ["train", "-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", *own]

    def start(self, *overrides: str) -> "subprocess.Popen[str]":
        """Starts the command."""
        return subprocess.Popen(
            [sys.executable, "-m", "triptych", *self.command(*overrides)],
            cwd=self.training.folder,
            env={**self.training.environment(), **self.cluster.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # as from a terminal
        )

    def run(self, *overrides: str) -> tuple[int, str, str]:
        """Its exit status, standard output and standard error; its imports are there already."""
        variables = {**self.training.environment(), **self.cluster.environment}
        finished = run(*self.command(*overrides), cwd=self.training.folder, variables=variables)
        return finished.returncode, finished.stdout, finished.stderr

    def scripts(self) -> list[str]:
        """What has been submitted, the newest last."""
        files = self.training.folder.glob("outputs/sweeps/slurm/*.sbatch")
        return [file.read_text() for file in sorted(files, key=lambda file: file.stat().st_mtime)]

    def names(self) -> list[str]:
        """Of the arrays."""
        return [re.search("--job-name=(.*)", script)[1] for script in self.scripts()]  # type: ignore[index]

    def states(self) -> list[tuple[str, str]]:
        """ARRAY_TASK and state of what is in the queue."""
        names = ",".join(self.names())
        if not names:
            return []
        lines = self.cluster.command("squeue", "-h", "-r", f"--name={names}", "--format=%F_%K %T").splitlines()
        return [(line.split()[0], line.split()[1]) for line in lines]

    def starts(self) -> list[int]:
        """How often each run has begun."""
        return [log.read_text().count("reading dates") for log in self.parent.glob("*/train.log")]

    def watched(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        """State and last line of each run, as `triptych watch` shows them in another folder."""
        monkeypatch.chdir("/")
        for name, value in self.cluster.environment.items():
            monkeypatch.setenv(name, value)
        return [(run.state, run.line) for run in look(self.parent, Redactor(), Scheduler())]

    def summaries(self) -> list[Path]:
        """Of the finished runs."""
        return sorted(self.parent.glob("*/summary.json"))


@pytest.fixture
def sweep(cluster: Any, training: Any) -> Sweep:
    return Sweep(cluster, training)


def test_one_fails_and_never_more_than_two_run(sweep: Sweep) -> None:
    most, ended = 0, threading.Event()

    def observe() -> None:
        nonlocal most
        while not ended.wait(0.1):
            most = max(most, [state for _, state in sweep.states()].count("RUNNING"))

    observer = threading.Thread(target=observe)
    observer.start()
    command = ("seed=1,2,-1,3", "hydra.launcher.array_parallelism=2")
    try:
        status, stdout, stderr = sweep.run(*command)
    finally:
        ended.set()
        observer.join()
    assert status == 1
    assert most == 2
    *tail, answer = stderr.splitlines()
    assert re.fullmatch(r"error: 1 of 4 jobs failed: seed=-1 \(FAILED as \d+_2, .+\)", answer)
    assert re.fullmatch(r"job 3 of 4 failed, outputs/sweeps/slurm/triptych-\w+_2\.log:", tail[0])
    assert "  error: seed=-1: expected 0 or more" in tail
    assert "3 done, 1 failed" in stdout
    before = {file: file.stat().st_mtime_ns for file in sweep.summaries()}
    assert len(before) == 3

    status, stdout, _ = sweep.run(*command)
    assert status == 1
    assert stdout.count("done already") == 3
    _, again = sweep.scripts()
    assert again.count("run=(") == 1
    assert "seed=-1" in again
    assert {file: file.stat().st_mtime_ns for file in sweep.summaries()} == before
    assert sweep.starts() == [1, 1, 1]


@pytest.mark.nightly
def test_the_waiting_process_dies(sweep: Sweep) -> None:
    """The array goes on; two commands at once find it again, submit nothing, and collect."""
    command = (SLOW, "seed=1,2,3", "hydra.launcher.array_parallelism=2")
    first = sweep.start(*command)
    wait_until(lambda: "RUNNING" in dict(sweep.states()).values(), 60, "a job that runs")
    first.kill()
    first.communicate()
    others = [sweep.start(*command) for _ in range(2)]
    for other in others:
        stdout, stderr = other.communicate(timeout=bound(240))
        assert other.returncode == 0, stderr
        assert re.search(r"job 3 of 3: seed=3: job \d+_2 is \w+", stdout)
        assert stdout.splitlines()[-1] == "3 done"
    assert len(sweep.scripts()) == 1
    assert sweep.starts() == [1, 1, 1]
    status, stdout, _ = sweep.run(*command)
    assert (status, stdout.count("done already")) == (0, 3)


@pytest.mark.nightly
def test_nothing_waits(sweep: Sweep) -> None:
    """Also after a Ctrl-C."""
    command = ("+callbacks.recording.seconds=[3]", "seed=1,2")  # so that both are still running at the third command
    for _ in range(2):
        started = time.monotonic()
        status, stdout, _ = sweep.run(*command, "hydra.launcher.wait=false")
        assert status == 0
        assert re.search(r"2 of 2 jobs are in the queue; .* scancel \d+ to cancel them", stdout)
        check_within(60, time.monotonic() - started)
    waiting = sweep.start(*command)
    assert waiting.stdout is not None
    while "running" not in (line := waiting.stdout.readline()):
        assert line
    os.kill(waiting.pid, signal.SIGINT)
    _, stderr = waiting.communicate(timeout=bound(30))
    assert waiting.returncode == 130
    assert re.fullmatch(r"the jobs continue; run the same command again .*, or scancel \d+ to cancel them\n", stderr)
    assert sweep.run(*command)[0] == 0
    assert len(sweep.scripts()) == 1
    assert sweep.starts() == [1, 1]


@pytest.mark.nightly
def test_a_job_is_warned_and_another_cancelled(sweep: Sweep) -> None:
    """The one is requeued and goes on; the other counts as failed, and is run again by the same command."""
    process = sweep.start(SLOW, "seed=1,2")
    wait_until(lambda: len(list(sweep.parent.glob("*/steps-0"))) == 2, 120, "both have begun")
    (warned, _), (cancelled, _) = sorted(sweep.states())
    sweep.cluster.command("scancel", "--signal=USR1", warned)
    sweep.cluster.command("scancel", cancelled)
    _, stderr = process.communicate(timeout=bound(240))
    assert process.returncode == 1
    assert f"seed=2 (CANCELLED as {cancelled}, " in stderr.splitlines()[-1]
    log = (sweep.training.folder / f"outputs/sweeps/slurm/{sweep.names()[0]}_0.log").read_text()
    stopped = re.search(rf"stopped by SIGUSR1 at step (\d); job {warned} is requeued", log)
    assert stopped is not None, log
    assert re.search(rf"resuming from .+, after {stopped[1]} step{'s' * (stopped[1] != '1')}$", log, re.MULTILINE), log
    (summary,) = sweep.summaries()
    assert json.loads(summary.read_text())["steps"] == 6
    assert sweep.run(SLOW, "seed=1,2")[0] == 0
    assert sorted(sweep.starts()) == [2, 2]


@pytest.mark.nightly
def test_watch_says_what_became_of_jobs_that_never_began(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep.run("seed=1", "hydra.launcher.partition=gpus")[0] == 1
    ((state, line),) = sweep.watched(monkeypatch)
    assert line.startswith("error: sbatch: invalid partition specified: gpus")
    refused = ("failed", line)
    assert state == "failed"
    assert sweep.run("seed=2", "hydra.launcher.setup=[exit 3]", "hydra.launcher.wait=false")[0] == 0
    ended = ("failed", "error: hydra.launcher.setup ended the job with exit status 3")
    wait_until(lambda: ended in sweep.watched(monkeypatch), 60, lambda: f"{sweep.watched(monkeypatch)}")
    hold = "+hydra.launcher.additional_parameters.hold=null"
    assert sweep.run("seed=3", hold, "hydra.launcher.wait=false")[0] == 0
    assert sweep.watched(monkeypatch) == [refused, ended, ("queued", "")]
    sweep.cluster.command("scancel", sweep.states()[-1][0])
    wait_until(lambda: ("stopped", "CANCELLED") in sweep.watched(monkeypatch), 60, "the end of the last")
    assert sweep.starts() == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "layout",
    [["trainer.devices=2", "hydra.launcher.tasks_per_node=2"], ["trainer.num_nodes=2", "hydra.launcher.nodes=2"]],
    ids=["two tasks", "two nodes"],
)
def test_processes_train_together(layout: list[str], sweep: Sweep) -> None:
    status, _, stderr = sweep.run(*layout, "seed=1,2")
    assert status == 0, stderr
    assert len(sweep.summaries()) == 2
    for summary in sweep.summaries():
        first, second = (torch.load(summary.parent / f"weights-{rank}.pt", weights_only=True) for rank in (0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["trainer.devices=2", "hydra.launcher.tasks_per_node=4"], "trainer.devices=2, but .*tasks_per_node=4"),
        (["trainer.num_nodes=2"], "trainer.num_nodes=2, but .*nodes=1"),
        (["hydra.launcher.partition=gpus"], "sbatch: invalid partition specified: gpus"),
        (["hydra.launcher.partition='a b'"], "--partition=a b: expected an option without spaces"),
        (["hydra.launcher.timeout_min=soon"], "hydra.launcher.timeout_min=soon: expected"),
        (["hydra.launcher.partion=x"], "hydra.launcher.partion: .* did you mean hydra.launcher.partition"),
        (
            ["logger=wandb", "logger.wandb.entity=ghp_ABCDEFabcdef0123456789"],
            r"entity=\[redacted\].*the batch script would contain a secret",
        ),
    ],
    ids=["tasks", "nodes", "partition", "blank", "type", "key", "secret"],
)
def test_mistakes_are_answered_before_anything_is_submitted(overrides: list[str], answer: str, sweep: Sweep) -> None:
    status, _, stderr = sweep.run(*overrides)
    assert status == 1
    assert re.match(f"error: .*{answer}", stderr), stderr
    assert len(stderr.splitlines()) == 1
    assert sweep.states() == []
