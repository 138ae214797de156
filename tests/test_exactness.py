"""Several processes compute what one computes: losses, gradients, the metrics of an evaluation; shares of the weights
(FSDP) and copies of them (DDP) alike.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from triptych.assembly import restore
from triptych.evaluate import evaluation

COMMON = [
    *tiny.NETWORK,
    "block.dropout=0",
    "batch.size=24",
    "batch.eval_size=20",
    "scheduler.warmup_steps=5",
    "trainer.max_steps=50",
    "trainer.val_check_interval=50",
    "callbacks=default",
    "callbacks.progress.refresh_rate=0",
    "logger=csv",
]
DATES = ["data.num_train=200", "data.num_validation=50", "data.num_test=3", "data.languages=[de,en,ja]"]
WINDOWS = ["task=language_modeling", "model=decoder_only", "data=plain_text", "data.dir=.", "data.train=text.txt"]
ACCUMULATED = ["trainer.accumulate_grad_batches=3", "trainer.val_check_interval=150"]
LAYOUTS = {
    "padded": ["experiment=dates/translation_full", *DATES],
    "windows": [*WINDOWS, "shape.max_length=16"],
    "accumulated": ["experiment=dates/classification_encoder_only", *DATES, *ACCUMULATED],
}
"""Batches of all kinds, on three architectures and three tasks. Of 50 examples one rank evaluates 20, the other 30; of
3, one all."""


class Run:
    """What a training has left: what each rank saw, and its record."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.directory = folder / "run"
        self.losses = sum(self._seen(folder, "losses", rank) for rank in range(ranks)) / ranks
        self.folder = folder
        self.summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())

    @property
    def gradient(self) -> dict[str, Tensor]:
        """Of the first update."""
        gradient: dict[str, Tensor] = self._seen(self.folder, "gradient", 0)
        return gradient

    def _seen(self, folder: Path, what: str, rank: int) -> Any:
        return torch.load(folder / f"{what}-{rank}.pt", weights_only=True)


class Trainings:
    """Trainings in processes that share one import."""

    def __init__(self, folder: Path) -> None:
        tests = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), tests]))
        environment = {
            "PYTHONPATH": path,
            "TRIPTYCH_ALLOW": "witness.",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, f"{tests}/ranks.py"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, ranks: int, *overrides: str) -> Run:
        """Trains in a folder of that name."""
        folder = self.folder / name
        folder.mkdir()
        witness = ["+callbacks.witness._target_=witness.Witness", f"+callbacks.witness.folder={folder}"]
        place = ["trainer=ddp_cpu", f"trainer.devices={ranks}"] if ranks > 1 else ["trainer=cpu"]
        job = {"overrides": [*COMMON, *place, *overrides, *witness, f"run_dir={folder}/run"], "ranks": ranks}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({**job, "log": f"{folder}/rank"}) + "\n")
        self.server.stdin.flush()
        statuses = json.loads(self.server.stdout.readline())
        assert statuses == [0] * ranks, "".join(file.read_text() for file in folder.glob("rank-*"))
        return Run(folder, ranks)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    folder = tmp_path_factory.mktemp("trainings")
    (folder / "text.txt").write_text(" ".join(f"{n} times {n} is {n * n}." for n in range(100)))
    trainings = Trainings(folder)
    yield trainings
    assert trainings.server.stdin is not None
    trainings.server.stdin.close()
    trainings.server.wait(10)


Pair = tuple[Run, Run]


@pytest.fixture(scope="module", params=list(LAYOUTS))
def double(request: pytest.FixtureRequest, trainings: Trainings) -> Pair:
    """50 updates in float64, on one process and on two."""
    one, two = (
        trainings.run(f"{request.param}-{n}", n, *LAYOUTS[request.param], "trainer.precision=64-true") for n in (1, 2)
    )
    return one, two


def test_the_losses_are_those_of_one_process(double: Pair) -> None:
    one, two = double
    assert len(one.losses) == len(two.losses) in (50, 150)
    assert one.losses[-1] < 0.9 * one.losses[0]  # it has learned
    updates = [run.losses.view(50, -1).sum(1) for run in double]
    torch.testing.assert_close(updates[1], updates[0], rtol=0, atol=1e-12)


@pytest.fixture(scope="module", params=list(LAYOUTS))
def single(request: pytest.FixtureRequest, trainings: Trainings) -> Pair:
    """One update in float32, on one process and on two."""
    few = ["trainer.max_steps=1", "trainer.val_check_interval=3", "scheduler.warmup_steps=0"]
    one, two = (trainings.run(f"{request.param}-single-{n}", n, *LAYOUTS[request.param], *few) for n in (1, 2))
    return one, two


def test_the_first_gradient_is_that_of_one_process(single: Pair) -> None:
    """Relative to its largest entry."""
    one, two = (run.gradient for run in single)
    largest = max(float(entry.abs().max()) for entry in one.values())
    assert one.keys() == two.keys()
    for name, entries in one.items():
        torch.testing.assert_close(two[name], entries, rtol=0, atol=1e-6 * largest, msg=name)


def test_the_metrics_are_exactly_those_of_one_process(
    single: Pair, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same weights."""
    _, two = single
    monkeypatch.chdir(trainings.folder)
    config, task = restore(two.directory)
    assert evaluation(config, task, is_same_data=True) == two.summary["metrics"]
    counts = task.matrices.get("test/confusion_matrix")
    assert counts is None or two.summary["confusion_matrix"]["counts"] == counts
