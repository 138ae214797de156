"""Two processes train what one trains."""

import csv
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import tiny
from commands import Finished, run
from triptych.config import RunError
from triptych.launch.signals import Interruption
from triptych.train import leaving_the_others

TINY = [
    *tiny.TINY,
    "experiment=dates/translation",
    "data.num_validation=50",
    "data.num_test=2",
    "block.dropout=0",
    "block.bias=false",  # a bias of keys changes nothing: Adam makes steps of its rounding errors
    "batch.eval_batch_size=20",
    "trainer.accelerator=cpu",
    "trainer.accumulate_grad_batches=2",
    "trainer.max_steps=6",
    "trainer.val_check_interval=4",
    "trainer.log_every_n_steps=2",
]


def train(folder: Path, *overrides: str) -> Finished:
    """The processes that it starts have a Python of their own each."""
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parents[1])])
    variables = {"PYTHONPATH": path, "TRIPTYCH_ALLOW": "recording_callback."}
    recording = [
        "+callbacks.recording._target_=recording_callback.RecordingCallback",
        f"+callbacks.recording.folder={folder}",
    ]
    return run("train", *TINY, *recording, *overrides, cwd=folder, variables=variables)


def series(run: Path) -> list[dict[str, float]]:
    with open(run / "metrics.csv") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finished = train(folder, "logger=csv", "run_dir=run")
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("together")
    clock = "run_dir=run_${now:%f}"  # read once, for both
    finished = train(folder, "trainer=ddp", "trainer.devices=2", clock, "trainer.accelerator=cpu")
    assert finished.returncode == 0, finished.stderr
    (run,) = folder.glob("run_*")
    return run, finished.stderr


def test_the_weights_are_those_of_one_process(alone: Path, together: tuple[Path, str]) -> None:
    run, _ = together
    first, second = (torch.load(run.parent / f"weights-{rank}.pt", weights_only=True) for rank in (0, 1))
    single = torch.load(alone / "weights-0.pt", weights_only=True)
    for name, weight in single.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], weight, rtol=1e-4, atol=1e-5)


def test_the_series_are_those_of_one_process(alone: Path, together: tuple[Path, str]) -> None:
    """Two batches of validation that hold unequal numbers, and one test example for each rank."""
    rows, expected = series(together[0]), series(alone / "run")
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        for name in (
            "train/tokens_per_second",
            "train/non_padding_fraction",
            "train_flops",
            "elapsed_s",
        ):  # other times, other padding
            assert (row.pop(name, None) is None) == (other.pop(name, None) is None)
        assert row == pytest.approx(other, rel=1e-4)


def test_rank_0_writes_for_all(alone: Path, together: tuple[Path, str]) -> None:
    run, terminal = together
    names = {"checkpoints", "config.yaml", "metrics.csv", "rank-1.log", "summary.json", "tokenizer.json", "train.log",
             "weights.safetensors", "predictions.jsonl", "attention.json", ".lock"}  # fmt: skip
    assert {path.name for path in run.iterdir()} == names | {"wandb"}
    assert len(list(run.glob("wandb/offline-run-*"))) == 1
    assert (run / "rank-1.log").read_text() == ""
    assert terminal.count("val/loss = ") == (run / "train.log").read_text().count("val/loss = ") == 1
    record, other = (json.loads((folder / "summary.json").read_text()) for folder in (run, alone / "run"))
    for name in ("steps", "train_tokens", "tokens_per_step", "tokenizer_sha256"):
        assert record[name] == other[name], name
    for last, of in ((series(run)[-1], record), (series(alone / "run")[-1], other)):
        found = {"tokens": of["train_tokens"], "train_flops": of["train_flops"], "elapsed_s": of["wall_time_s"]}
        assert {name: last[name] for name in found} == found
    answers, others = ((folder / "predictions.jsonl").read_text() for folder in (run, alone / "run"))
    assert answers.count("\n") == others.count("\n") == 2
    assert [json.loads(line)["index"] for line in answers.splitlines()] == [0, 1]


@pytest.mark.nightly
def test_a_mistake_in_the_data_is_told_once(tmp_path: Path) -> None:
    finished = train(tmp_path, "trainer.devices=2", "data.num_train=19", "run_dir=run")
    assert finished.returncode == 1
    assert finished.stderr.count("batch.global_size=20: larger than the training split; expected at most 19") == 1
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    "ending", [None, Interruption(15, 3), RunError("out of memory")], ids=["well", "stop", "failure"]
)
def test_no_thread_of_the_connection_is_left_where_nothing_is_under_way(ending: Exception | None) -> None:
    """One that is there while Python ends may abort it (16 of 40 bare pairs of processes were)."""
    others = threads()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    assert threads() > others
    with nullcontext() if ending is None else pytest.raises(type(ending)), leaving_the_others():
        if ending is not None:
            raise ending
    assert dist.is_initialized() == isinstance(ending, RunError)
    if dist.is_initialized():
        dist.destroy_process_group()
    assert threads() <= others


def threads() -> int:
    """Of this process, those of C++ too."""
    return len(os.listdir("/proc/self/task"))
