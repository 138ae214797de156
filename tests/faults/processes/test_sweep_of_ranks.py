"""A sweep whose jobs are two processes each."""

from pathlib import Path

import pytest

import tiny
from commands import run
from triptych.training import read_checkpoint

pytestmark = pytest.mark.faults


def test_each_job_is_one_run_however_many_ranks(tmp_path: Path) -> None:
    """One directory, one W&B run, one log (and what the terminal of the job has shown)."""
    layout = ["experiment=dates/classification", "model=decoder_only", "trainer=ddp_cpu", "trainer.max_steps=4"]
    jobs = ["seed=1,2", "run_dir=sweep", "trainer.val_check_interval=2"]
    finished = run("train", "-m", *tiny.TINY, *layout, *jobs, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    runs = sorted(path.parent for path in tmp_path.rglob("summary.json"))
    assert len(runs) == 2
    assert {folder.parent for folder in runs} == {tmp_path / "sweep"}
    assert len(list(tmp_path.rglob("offline-run-*"))) == 2
    assert finished.stderr.count("test/loss = ") == 2
    for folder in runs:
        assert len(list(folder.glob("wandb/offline-run-*"))) == 1
        assert sorted(path.name for path in folder.glob("*.log")) == ["rank-1.log", "terminal.log", "train.log"]
        assert (folder / "rank-1.log").read_text() == ""
        assert (folder / "train.log").read_text().count("test/loss = ") == 1
        losses = read_checkpoint(folder / "checkpoints" / "last.ckpt")["task"]["losses"]
        assert len(losses) == 2  # of as many ranks
    assert {path.name for path in tmp_path.iterdir()} == {"outputs", "sweep"}  # Hydra's notes, and the runs
