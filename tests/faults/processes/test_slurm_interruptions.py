"""The files of slurm/ when something happens to a job: it goes back into the queue and ends as if nothing had happened,
or it ends for good."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cases import by_day
from clock import wait_until

pytestmark = pytest.mark.faults

LONG = ["trainer.max_steps=24", "trainer.val_check_interval=1000", "callbacks.checkpoints.every_n_steps=4",
        "scheduler.warmup_steps=4", "logger=wandb"]  # fmt: skip


def summary(run_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return content


@pytest.fixture(scope="module")
def undisturbed(
    new_training: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], str]]:
    """The SHA-256 of the weights after a run with so many ranks that was left alone, without a scheduler."""
    trainings = list[Any]()

    @cache
    def train(ranks: int) -> str:
        trainings.append(training := new_training(tmp_path_factory.mktemp("alone")))
        training.start(*LONG, *(["trainer=ddp", f"trainer.devices={ranks}"] if ranks > 1 else []))
        assert training.wait() == 0, training.stderr.read_text()
        return str(summary(training.run_dir)["weights_sha256"])

    yield train
    for training in trainings:
        training.kill()


class Running:
    """A job that has begun to train, and what is seen of it.

    Args:
        cluster: the scheduler.
        training: where it is started.
        template: the file that starts it.
        seconds: of an update.
    """

    def __init__(self, cluster: Any, training: Any, template: str, seconds: float) -> None:
        self.cluster, self.training = cluster, training
        self.log = training.folder / "log"
        options = (f"--output={self.log}",)
        slow = f"+callbacks.recording.seconds=[{seconds},{seconds}]"
        self.ranks = 2 if template == "several_nodes" else 1
        if template == "array":
            (training.folder / "sweep.txt").write_text("seed=2\nseed=1\n")
            number = training.submit_template(
                cluster, "array", *LONG, slow, first=("sweep.txt",), options=("--array=2", *options)
            )
            self.job, self.run_dir = f"{number}_2", training.folder / "outputs" / "slurm" / number / "2"
        else:
            self.job = training.submit_template(cluster, template, *LONG, slow, options=options)
            self.run_dir = training.folder / "outputs" / "slurm" / self.job
        self.wait_for_steps(5 if seconds < 1 else 1)

    def wait_for_steps(self, count: int) -> None:
        """Waits until every rank has made so many."""

        def is_there() -> bool:
            assert self.state not in ("FAILED", "CANCELLED", "COMPLETED"), self.log.read_text()
            return all(self.training.steps(rank) >= count for rank in range(self.ranks))

        wait_until(is_there, 90, f"step {count}")

    @property
    def state(self) -> str:
        """In Slurm's words."""
        return str(self.cluster.show(self.job)["JobState"])

    def wait_for(self, state: str, seconds: float = 90) -> None:
        """Waits until that is its state."""
        wait_until(lambda: self.state == state, seconds, f"{state}; see {self.log}")

    def is_requeued(self) -> None:
        """Waits until it is back in the queue."""
        wait_until(lambda: self.cluster.show(self.job)["Restarts"] == "1", 40, "back in the queue")

    def resumes_once(self, expected: str) -> None:
        """It goes back into the queue once, and ends with these weights, as one run of W&B."""
        self.is_requeued()
        self.wait_for("COMPLETED")
        text = self.log.read_text()
        assert "resuming from" in text
        assert "Traceback" not in text
        record = summary(self.run_dir)
        assert (record["steps"], record["weights_sha256"]) == (24, expected)
        assert self.cluster.show(self.job)["Restarts"] == "1"
        name = (self.run_dir / "wandb" / "id").read_text()
        fragments = sorted((self.run_dir / "wandb").glob("offline-run-*"))
        assert [fragment.name.rpartition("-")[2] for fragment in fragments] == [name, name]

    def nothing_is_left(self) -> None:
        """No process, and no place in the queue."""
        wait_until(lambda: not self.training.members(), 15, "no process is left")
        assert self.cluster.command("squeue", "--noheader", f"--jobs={self.job}", "--states=PENDING,RUNNING") == ""
        assert not (self.run_dir / "summary.json").exists()


@pytest.fixture
def running(cluster: Any, training: Any) -> Iterator[Callable[..., Running]]:
    """Starts a job; what is left of it is cancelled after the test."""
    jobs: list[Running] = []

    def start(template: str, seconds: float = 0.15) -> Running:
        jobs.append(Running(cluster, training, template, seconds))
        return jobs[-1]

    yield start
    for job in jobs:
        cluster.command("scancel", job.job)


def test_the_warning_before_the_time_limit(
    running: Callable[..., Running], cluster: Any, undisturbed: Callable[[int], str]
) -> None:
    job = running("array")
    cluster.command("scancel", "--signal=USR1", job.job)
    job.resumes_once(undisturbed(1))
    assert "stopped by SIGUSR1 at step" in job.log.read_text()


@pytest.mark.parametrize("warned", by_day([True, False], [False]), ids=["SIGUSR1", "SIGTERM"])
def test_preempted(
    warned: bool, running: Callable[..., Running], cluster: Any, undisturbed: Callable[[int], str]
) -> None:
    """A cluster sends SIGTERM, unless it is told to send the warning that the job asked for."""
    file = cluster.folder / "slurm.conf"
    conf = file.read_text()
    if not warned:
        file.write_text(conf.replace("SlurmctldParameters=preempt_send_user_signal\n", ""))
        cluster.command("scontrol", "reconfigure")
    try:
        job = running("preemptible")
        cluster.command(
            "sbatch", "--partition=high", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 1"
        )
        job.resumes_once(undisturbed(1))
        assert f"stopped by {'SIGUSR1' if warned else 'SIGTERM'} at step" in job.log.read_text()
    finally:
        file.write_text(conf)
        cluster.command("scontrol", "reconfigure")


@pytest.mark.nightly
def test_a_node_goes_down(running: Callable[..., Running], cluster: Any, undisturbed: Callable[[int], str]) -> None:
    job = running("several_nodes")
    cluster.lose("n1")
    job.is_requeued()
    cluster.bring_back("n1")
    job.resumes_once(undisturbed(2))


@pytest.mark.parametrize(("template", "warned"), by_day([("cpu", False), ("several_nodes", True)], [("cpu", False)]))
def test_a_job_that_is_cancelled_stays_away(
    template: str, warned: bool, running: Callable[..., Running], cluster: Any
) -> None:
    job = running(template, seconds=6.0 if warned else 0.15)
    if warned:  # which is heard in the middle of the next update, and acted on after it
        time.sleep(1.5)
        cluster.command("scancel", "--signal=USR1", job.job)
        time.sleep(1)  # for what comes later may overtake it
    cluster.command("scancel", job.job)
    job.wait_for("CANCELLED", 30)
    job.nothing_is_left()
    text = job.log.read_text()
    signal_heard = "SIGUSR1" if warned else "SIGTERM"
    assert re.search(rf"stopped by {signal_heard} at step \d+. Run the same command again to resume.", text), text
    assert "Traceback" not in text
    assert list((job.run_dir / "checkpoints").glob("step-*.ckpt"))


def test_a_killed_rank_takes_its_job_along(running: Callable[..., Running], cluster: Any) -> None:
    job = running("several_nodes")
    os.kill(job.training.rank(1), signal.SIGKILL)
    job.wait_for("FAILED", 30)
    job.nothing_is_left()
    assert cluster.show(job.job)["Restarts"] == "0"
