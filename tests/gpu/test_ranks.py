"""Several processes on GPUs compute what one computes. On one card two ranks talk by gloo, as two nodes of a device
each; NCCL takes one rank a card."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from safetensors.torch import load_file

from clock import bound, wait_until
from gpu.test_trainings import PATHS, RECORDING, STILL, TINY

pytestmark = pytest.mark.gpu

TASKS = ["translation", "classification", "tagging", "similarity", "question_answering", "language_modeling"]
COUNT = 2


def start(folder: Path, *overrides: str, count: int = COUNT) -> list[subprocess.Popen[str]]:
    """A training by torchrun: so many nodes, each of one process, all on the first device."""
    environment = {
        **os.environ, "PYTHONPATH": PATHS, "TRIPTYCH_ALLOW": "recording_callback.,gloo.", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    port = str(find_free_network_port())
    command = ["train", *TINY, *RECORDING, *STILL, *overrides, "run_dir=run", f"trainer.num_nodes={count}"]
    nodes = [
        [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", f"--node-rank={rank}",
         "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", "-m", "triptych", *command]
        for rank in range(count)
    ]  # fmt: skip
    return [
        subprocess.Popen(
            node, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for node in nodes
    ]


def trained(folder: Path, *overrides: str, count: int = COUNT) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights, and the record."""
    folder.mkdir()
    for process in start(folder, *overrides, count=count):
        _, stderr = process.communicate(timeout=bound(300))
        assert process.returncode == 0, stderr[-4000:]
    return load_file(folder / "run" / "weights.safetensors"), json.loads((folder / "run/summary.json").read_text())


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_of_one_card(task: str, on_device: list[str], tmp_path: Path) -> None:
    """Weights and metrics are those of one process."""
    model = "model=encoder_only" if task in ("classification", "tagging", "similarity") else "model=full"
    chosen = [f"experiment=dates/{task}", model, *on_device]
    alone, expected = trained(tmp_path / "one", *chosen, count=1)
    ranks = ["trainer=ddp", "trainer.devices=1", "trainer.strategy._target_=gloo.GlooDDP"]
    together, record = trained(tmp_path / "two", *ranks, *chosen)
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-3, atol=1e-4)
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-3, abs=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_nccl_with_a_rank_a_card(strategy: str, device: torch.device, on_device: list[str], tmp_path: Path) -> None:
    """As many as there are cards: one is enough to call it."""
    chosen = ["experiment=dates/translation", "model=full", *STILL, *TINY, *RECORDING, *on_device]
    cards = torch.cuda.device_count() if device.type == "cuda" else 1
    finished = subprocess.run(
        [sys.executable, "-m", "triptych", "train", f"trainer={strategy}", f"trainer.devices={cards}", *chosen,
         "run_dir=run"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": PATHS, "TRIPTYCH_ALLOW": "recording_callback."},
        capture_output=True, text=True, timeout=bound(300), check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    _, expected = trained(tmp_path / "one", *chosen[:2], *on_device, count=1)
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert record["metrics"] == pytest.approx(expected["metrics"], rel=1e-3, abs=0.05)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_that_is_gone(signum: signal.Signals, on_device: list[str], tmp_path: Path) -> None:
    """The other ends too, and the same command goes on."""
    chosen = ["experiment=dates/translation", "model=full", *on_device, "trainer=ddp", "trainer.devices=1",
              "trainer.strategy._target_=gloo.GlooDDP", "trainer.strategy.timeout=20", "trainer.max_steps=400",
              "callbacks.checkpoints.every_n_steps=10"]  # fmt: skip
    processes = start(tmp_path, *chosen)
    seen = tmp_path / "steps-1"
    wait_until(lambda: seen.exists() and int(seen.read_text()) > 30, 200, "30 steps")
    os.kill(int(subprocess.check_output(["pgrep", "-P", str(processes[1].pid)])), signum)  # torchrun's own process
    for process in processes:
        process.communicate(timeout=bound(200))
        assert process.returncode != 0
    assert list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    for process in start(tmp_path, *chosen):
        _, stderr = process.communicate(timeout=bound(300))
        assert process.returncode == 0, stderr[-4000:]
