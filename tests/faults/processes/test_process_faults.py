"""Several processes of which one dies or hangs."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from cases import by_day
from clock import wait_until

pytestmark = pytest.mark.faults

TIMEOUT = 5
ENDLESS = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.max_steps=1000000"]


@pytest.mark.fault(9)
@pytest.mark.parametrize("rank", by_day([0, 1], [1]))
def test_a_killed_rank_takes_all_along(
    rank: int, training: Any, record_property: Callable[[str, object], None]
) -> None:
    training.start(*ENDLESS, "logger=wandb")
    training.wait_for_steps(4, ranks=2)
    assert len(training.members()) >= 4  # the parent, the ranks, and those of W&B
    os.kill(training.rank(rank), signal.SIGKILL)
    record_property("count", f"rank {rank}: all gone after {training.wait_until_gone(10):.1f} s")
    assert training.process.returncode == 128 + signal.SIGKILL
    terminal = training.stderr.read_text()
    assert terminal.splitlines()[-1].startswith(f"error: rank {rank} of 2 was killed by SIGKILL")
    assert not (training.run_dir / "summary.json").exists()


@pytest.mark.fault(10)
@pytest.mark.parametrize("rank", by_day([0, 1], [1]))
def test_a_rank_that_hangs_takes_all_along(
    rank: int, training: Any, record_property: Callable[[str, object], None]
) -> None:
    training.start(*ENDLESS, f"trainer.strategy.timeout={TIMEOUT}")
    training.wait_for_steps(4, ranks=2)
    os.kill(training.rank(rank), signal.SIGSTOP)
    record_property("count", f"rank {rank}: all gone after {training.wait_until_gone(TIMEOUT + 10):.1f} s")
    assert training.process.returncode == 1
    terminal = training.stderr.read_text()
    assert "another process exited or hung (" in terminal
    assert "Traceback" not in terminal


@pytest.mark.fault(9)
def test_no_rank_outlives_a_killed_parent(training: Any) -> None:
    training.start(*ENDLESS)
    training.wait_for_steps(4, ranks=2)
    os.kill(training.rank(0), signal.SIGSTOP)  # not even one that hangs
    time.sleep(0.5)
    training.process.kill()
    training.wait_until_gone(10)


@pytest.mark.nightly
@pytest.mark.fault(3)
def test_a_signal_while_one_rank_tests_and_the_other_waits(training: Any) -> None:
    """Three batches: rank 1 has one of them, and rank 0 two. All end as one that was asked to, and nothing is lost."""
    sizes = ["data.num_test=12000", "batch.eval_batch_size=4000", "data.num_validation=20"]
    sizes.append("+callbacks.recording.test_seconds=2")  # long enough for the signal to come in time
    training.start("trainer=ddp_cpu", *sizes)
    second = training.folder / "test-0"
    wait_until(lambda: second.exists() and second.read_text() == "1", 120, "the second batch of rank 0")
    training.process.send_signal(signal.SIGUSR1)
    assert training.wait() == 128 + signal.SIGUSR1, training.stderr.read_text()
    assert "stopped by SIGUSR1 at step 6" in training.stderr.read_text()
    assert "Traceback" not in training.stderr.read_text() + (training.run_dir / "rank-1.log").read_text()
    training.start("trainer=ddp_cpu", *sizes)
    assert training.wait() == 0, training.stderr.read_text()
    assert (training.run_dir / "summary.json").exists()


@pytest.mark.nightly
def test_a_run_whose_directory_is_moved_away_ends(training: Any) -> None:
    training.start(*ENDLESS)
    training.wait_for_steps(4, ranks=2)
    training.run_dir.rename(training.run_dir.with_name("moved"))
    training.wait_until_gone(20)
    answer = f"error: run_dir={training.run_dir} was deleted, moved or replaced during the run"
    assert answer in training.stderr.read_text().splitlines()
    assert not training.run_dir.exists()
