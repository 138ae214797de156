"""``compile=true`` as a user runs it. (Where the tests run, shapes are checked at each call, which torch.compile cannot
follow.)"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from commands import run

JOB = [
    "train", *tiny.NETWORK, "task=language_modeling", "model=decoder_only", "data=plain_text", "data.dir=.",
    "data.train=text.txt", "tokenizer=bytes", "shape.max_length=32", "batch.global_size=4", "block.dropout=0.0",
    "scheduler=constant", "scheduler.warmup_steps=2", "trainer.val_check_interval=10", "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu", "logger=csv",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(" ".join(f"{n} times {n} is {n * n}." for n in range(400)))
    return tmp_path


def losses(run_dir: Path) -> list[float]:
    with open(run_dir / "metrics.csv") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "network",
    [
        ["shape.max_length=128", "block.attention.sliding_windows=[8]", "task.label_smoothing=0.1", "task.z_loss=1e-3"],
        ["block/attention=reformer"],
        ["block/attention=performer"],
        ["block/attention=longformer", "block.attention.sliding_windows=[8]"],
    ],
    ids=["windows", "reformer", "performer", "longformer"],
)
def test_other_attention_trains_the_same(folder: Path, network: list[str]) -> None:
    for compiles, name in (("false", "plain"), ("true", "compiled")):
        options = [f"compile={compiles}", f"run_dir={name}", "block.activation_checkpointing=true"]
        finished = run(*JOB, *network, "trainer.max_steps=10", *options, cwd=folder)
        assert finished.returncode == 0, finished.stderr
    plain, compiled = losses(folder / "plain"), losses(folder / "compiled")
    assert len(plain) == 10
    assert compiled == pytest.approx(plain, abs=1e-5)
    plain_weights, compiled_weights = (summary(folder / name)["weights_sha256"] for name in ("plain", "compiled"))
    assert compiled_weights != plain_weights  # it was another program


@pytest.mark.faults
def test_trains_the_same_and_resumes_to_the_same_weights(folder: Path) -> None:
    compiled, long = "compile=true", "trainer.max_steps=20"
    for options in (
        [long, "run_dir=plain"],
        [long, compiled, "run_dir=whole"],
        ["trainer.max_steps=10", compiled, "run_dir=half"],
        [long, compiled, "resume=half", "run_dir=rest"],
    ):
        finished = run(*JOB, "block.activation_checkpointing=true", *options, cwd=folder)
        assert finished.returncode == 0, finished.stderr
    plain, whole, rest = (folder / name for name in ("plain", "whole", "rest"))
    assert len(losses(plain)) == 20
    assert losses(whole) == pytest.approx(losses(plain), abs=1e-5)
    assert summary(whole)["weights_sha256"] == summary(rest)["weights_sha256"]
    assert summary(whole)["weights_sha256"] != summary(plain)["weights_sha256"]  # it was another program


@pytest.mark.parametrize(
    "layout",
    [
        ["batch.packing=false"],
        ["batch.packing=true", "block/position=relative_bias"],
    ],
    ids=["bucketed", "packed"],
)
@pytest.mark.nightly
def test_one_program_serves_batches_of_all_shapes(tmp_path: Path, layout: list[str]) -> None:
    small = [*tiny.TINY, "trainer.max_steps=8", "trainer.val_check_interval=8", "trainer.log_every_n_steps=1"]
    small += ["block.dropout=0.0", "model=full", "logger=csv", *layout]
    for compiles, name in (("false", "plain"), ("true", "compiled")):
        options = [f"compile={compiles}", f"run_dir={name}"]
        noted = {"TORCH_LOGS": "recompiles"} if compiles == "true" else {}
        finished = run("train", "task=translation", *small, *options, cwd=tmp_path, variables=noted)
        assert finished.returncode == 0, finished.stderr
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)
    assert finished.stderr.count("Recompiling function forward") <= 8


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    small = [*tiny.TINY, "trainer.max_steps=2", "trainer.val_check_interval=2", "run_dir=run"]
    finished = run(
        "train", "task=translation", *small, "compile=true", cwd=tmp_path, variables={"CXX": "no-such-compiler"}
    )
    assert (finished.returncode, finished.stderr.splitlines()[-1]) == (
        1,
        "error: compile=true: no C++ compiler no-such-compiler. Install one, or set CXX",
    )
