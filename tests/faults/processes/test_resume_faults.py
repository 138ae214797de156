"""Faults 1, 4, 11 and 12 with two processes."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import by_day
from clock import wait_until
from triptych.training import damage_of, read_checkpoint

pytestmark = pytest.mark.faults

TWO = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"]
SHARED = ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2"]
CLASSIFICATION = ["experiment=dates/classification", "trainer.accumulate_grad_batches=2",
                  "trainer.val_check_interval=14"]  # fmt: skip


@pytest.mark.parametrize(
    "strategy",
    by_day([[*TWO, "callbacks=[default,ema]"], SHARED], [[*TWO, "callbacks=[default,ema]"]]),
    ids=["copies of the weights", "shares of the weights"],
)
def test_fault_1_killed_with_two_processes(
    strategy: list[str],
    tmp_path: Path,
    job: Callable[..., Any],
    run_of: Callable[[Path], Any],
    full: bool,
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    overrides = [*CLASSIFICATION, *strategy, "block.dropout=0.1"]
    undisturbed = job(tmp_path, *overrides, "run_dir=alone")
    assert undisturbed.wait() == 0, undisturbed.text
    alone, killed = run_of(tmp_path / "alone"), run_of(tmp_path / "killed")
    targets = sorted(chance.sample(range(1, 58), 12 if full else 2))
    for target in targets:
        started = job(tmp_path, *overrides, "run_dir=killed")
        assert started.until(lambda target=target: killed.newest >= target), started.text
        time.sleep(chance.uniform(0, 0.05))
        started.process.kill()  # the ranks die with their parent
        started.wait()
    last = job(tmp_path, *overrides, "run_dir=killed")
    assert last.wait() == 0, last.text
    record_property("count", f"{len(targets)} kills")
    assert killed.weights == alone.weights
    assert killed.series == alone.series
    assert killed.summary["train_tokens"] == alone.summary["train_tokens"]


def test_fault_4_the_warning_of_the_scheduler(
    cluster: Any, training: Any, full: bool, record_property: Callable[[str, object], None]
) -> None:
    """Each time: one checkpoint that is whole, one requeue, both ranks at the same update; and in the end the weights
    of a run that was left alone. Rank 0 is the slow one."""
    count = 40 if full else 1
    layout = ["trainer=ddp", "trainer.devices=2", f"trainer.max_steps={12 * count}", "trainer.val_check_interval=1000"]
    checkpoints = training.run_dir / "checkpoints"
    srun = ("srun", "--kill-on-bad-exit=1", "--nodes=1", "--ntasks-per-node=2")
    slow = "+callbacks.recording.seconds=[0.1,0]"
    job = training.submit(cluster, *layout, slow, before=srun, options=("--nodes=1", "--ntasks=2", "--requeue"))

    def seen(what: str) -> bool:
        return f"{what} " in f"{cluster.command('scontrol', 'show', 'job', job)} "

    steps = 0
    for number in range(1, count + 1):
        goal = steps + 2
        wait_until(lambda goal=goal: min(training.steps(0), training.steps(1)) >= goal, 120, f"step {goal}")
        cluster.command("scancel", "--signal=USR1", job)
        wait_until(lambda number=number: seen(f"Restarts={number}"), 60, f"restart {number}")
        newest = max(checkpoints.glob("step-*.ckpt"))
        assert damage_of(newest) is None
        steps = read_checkpoint(newest)["global_step"]
        assert training.steps(0) == training.steps(1) == steps
    wait_until(lambda: seen("JobState=COMPLETED"), 120, "the end")
    assert seen(f"Restarts={count}")
    record_property("count", f"{count} signals")
    stopped = training.weights(0)
    training.start(*layout, "run_dir=alone")  # without a scheduler
    assert training.wait() == 0, training.stderr.read_text()
    alone = training.weights(0)
    assert all(torch.equal(stopped[name], alone[name]) for name in alone)


def test_fault_11_sigterm_to_rank_1_only(training: Any, record_property: Callable[[str, object], None]) -> None:
    training.start(*TWO, "trainer.max_steps=1000000")
    training.wait_for_steps(4, ranks=2)
    os.kill(training.rank(1), signal.SIGTERM)
    seconds = training.wait_until_gone(15)
    record_property("count", f"{seconds:.1f} s")
    assert training.process.returncode == 143
    newest = max((training.run_dir / "checkpoints").glob("step-*.ckpt"))
    assert read_checkpoint(newest)["global_step"] == training.steps(0) == training.steps(1)
    assert "stopped by SIGTERM at step" in training.stderr.read_text()


@pytest.mark.parametrize(("before", "after"), by_day([(TWO, []), ([], TWO)], [(TWO, [])]), ids=["2 to 1", "1 to 2"])
def test_fault_12_another_number_of_processes(
    before: list[str], after: list[str], tmp_path: Path, job: Callable[..., Any], run_of: Callable[[Path], Any]
) -> None:
    """The examples of each update stay the same, so without dropout only rounding differs."""
    # a bias of the keys has no gradient but rounding, which Adam would make steps of
    overrides = [*CLASSIFICATION, "block.dropout=0.0", "block.bias=false"]
    alone = job(tmp_path, *overrides, "run_dir=alone")
    assert alone.wait() == 0, alone.text
    started, run = job(tmp_path, *overrides, *before, "run_dir=run"), run_of(tmp_path / "run")
    assert started.until(lambda: run.newest >= 20), started.text
    started.kill()
    started.wait()
    again = job(tmp_path, *overrides, *after, "run_dir=run")
    assert again.wait() == 0, again.text
    assert "trainer.devices=" in again.text
    assert "the examples of each step stay the same" in again.text
    weights = [
        read_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt")["state_dict"] for name in ("alone", "run")
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-5)
    assert run.summary["steps"] == 60
    assert run.summary["train_tokens"] == run_of(tmp_path / "alone").summary["train_tokens"]
