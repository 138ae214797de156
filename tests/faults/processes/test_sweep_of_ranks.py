"""A sweep whose jobs are two processes each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from triptych.training import read_checkpoint

pytestmark = pytest.mark.faults


def test_each_job_is_one_run_however_many_ranks(tmp_path: Path) -> None:
    """One directory, one W&B run, one log (and what the terminal of the job has shown)."""
    layout = ["experiment=dates/classification", "model=decoder_only", "trainer=ddp_cpu", "trainer.max_steps=4"]
    jobs = ["seed=1,2", "run_dir=sweep", "trainer.val_check_interval=2"]
    finished = subprocess.run(
        [sys.executable, "-m", "triptych", "train", "-m", *tiny.TINY, *layout, *jobs],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr
    runs = sorted(path.parent for path in tmp_path.rglob("summary.json"))
    assert len(runs) == 2
    assert {run.parent for run in runs} == {tmp_path / "sweep"}
    assert len(list(tmp_path.rglob("offline-run-*"))) == 2
    assert finished.stderr.count("test/loss = ") == 2
    for run in runs:
        assert len(list(run.glob("wandb/offline-run-*"))) == 1
        assert sorted(path.name for path in run.glob("*.log")) == ["rank-1.log", "terminal.log", "train.log"]
        assert (run / "rank-1.log").read_text() == ""
        assert (run / "train.log").read_text().count("test/loss = ") == 1
        losses = read_checkpoint(run / "checkpoints" / "last.ckpt")["task"]["losses"]
        assert len(losses) == 2  # of as many ranks
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "sweep"}  # Hydra's notes, and the runs
