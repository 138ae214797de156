"""Training under a real scheduler."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych.launch.processes import RankInfo, detect_rank

pytestmark = pytest.mark.faults


@pytest.mark.nightly  # make faults runs the files of slurm/, one of them on two nodes
@pytest.mark.parametrize(
    ("layout", "overrides"),
    [
        (["--nodes=1", "--ntasks-per-node=2"], ["trainer.devices=2"]),
        # Lightning by itself takes a job of this name for a shell.
        (["--nodes=2", "--ntasks-per-node=1", "--job-name=bash"], ["trainer.devices=1", "trainer.num_nodes=2"]),
    ],
    ids=["one node", "two nodes"],
)
def test_srun(layout: list[str], overrides: list[str], cluster: Any, training: Any) -> None:
    training.start(*overrides, before=("srun", *layout), environment=cluster.environment)
    assert training.wait() == 0, training.stderr.read_text()
    weights, others = training.weights(0), training.weights(1)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert json.loads((training.run_dir / "summary.json").read_text())["steps"] == 6
    terminal = training.stderr.read_text()
    assert terminal.count("val/loss = ") == (training.run_dir / "train.log").read_text().count("val/loss = ") == 1


def test_a_batch_script_is_not_taken_for_a_rank(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without srun, nothing else has been started, however many tasks the job asked for."""
    cluster.command("sbatch", "--wait", "--ntasks=2", f"--output={tmp_path}/environment", "--wrap=env --null")
    variables = (tmp_path / "environment").read_text().split("\0")
    assert "SLURM_NTASKS=2" in variables
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for variable in variables:
        if variable.startswith("SLURM_"):
            monkeypatch.setenv(*variable.split("=", 1))
    assert detect_rank() == RankInfo(None, 0, 1)
