"""The runs of an earlier commit (see fixtures/README.md) load, evaluate, resume, compare, and are trained again.

Weights are compared within rounding, since other processors add in another order. On the machine that made the runs,
``TRIPTYCH_BITWISE=1 pytest tests/test_earlier_runs.py`` compares them bit for bit.
"""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import triptych
from commands import run

RUNS = Path(__file__).parent / "fixtures" / "b740c1b"
NAMES = ("translation", "classification", "language_modeling")


def record(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return content


def train(folder: Path, name: str, *overrides: str) -> Path:
    """Runs the command of the record in a folder."""
    finished = run(*shlex.split(record(RUNS / name)["command"])[1:], *overrides, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return folder / name


def assert_same_weights(directory: Path, name: str) -> None:
    found, expected = (load_file(place / "weights.safetensors") for place in (directory, RUNS / name))
    assert found.keys() == expected.keys()
    is_bitwise = bool(os.environ.get("TRIPTYCH_BITWISE"))
    for key, weights in expected.items():
        # attention does not depend on the bias of its keys: its gradient is rounding alone, which Adam scales up
        if is_bitwise or not key.endswith(".k.bias"):
            torch.testing.assert_close(found[key], weights, rtol=0, atol=0 if is_bitwise else 1e-4, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_predicts_what_was_recorded(name: str) -> None:
    model = triptych.load(RUNS / name)
    weights = load_file(RUNS / name / "weights.safetensors")
    assert all(torch.equal(model.network.state_dict()[key], tensor) for key, tensor in weights.items())
    samples = record(RUNS / name)["samples"]
    answers = model.predict([sample["input"] for sample in samples])
    assert [getattr(answer, "label", answer) for answer in answers] == [sample["output"] for sample in samples]


@pytest.mark.parametrize("name", NAMES)
def test_evaluates_to_the_metrics_of_the_record(name: str) -> None:
    finished = run("evaluate", f"checkpoint={name}", cwd=RUNS)
    assert finished.returncode == 0, finished.stderr
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in finished.stdout.splitlines()]
    printed = {row[0]: float(row[1]) for row in rows if "/" in row[0] and len(row) > 1}
    assert printed == pytest.approx(record(RUNS / name)["metrics"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_its_command_trains_the_same_weights(name: str, tmp_path: Path) -> None:
    directory = train(tmp_path, name)
    assert_same_weights(directory, name)
    old, new = record(RUNS / name), record(directory)
    assert list(new) == list(old)
    own = {"git_commit", "versions", "hardware", "peak_memory_bytes", "wall_time_s", "tokens_per_s", "answer_time_s"}
    rounded = {"metrics", "weights_sha256", "tokenizer_sha256"}  # the digest is of the weights, which round
    assert {key: old[key] for key in old.keys() - own - rounded} == {
        key: new[key] for key in new.keys() - own - rounded
    }
    assert new["metrics"] == pytest.approx(old["metrics"], rel=1e-4, abs=1e-6)
    assert {path.name for path in (RUNS / name).iterdir()} <= {path.name for path in directory.iterdir()}


def test_resumes_at_the_third_step_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    checkpoints = tmp_path / "classification" / "checkpoints"
    checkpoints.mkdir(parents=True)
    step = RUNS / "classification" / "checkpoints" / "step-00000003.ckpt"
    for name in ("last.ckpt", step.name):
        shutil.copy(step, checkpoints / name)
    assert_same_weights(train(tmp_path, "classification"), "classification")


def test_resumes_with_more_steps(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "classification", tmp_path / "old")
    directory = train(tmp_path, "classification", "resume=old", "trainer.max_steps=8")
    assert record(directory)["updates"] == 8
    assert record(directory)["train_tokens"] > record(RUNS / "classification")["train_tokens"]


def test_is_compared(tmp_path: Path) -> None:
    finished = run("compare", str(RUNS), "--output", "report.html", cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(record(RUNS / name)["weights_sha256"][:8] in page for name in NAMES)
