"""A model answers in evaluate, predict and Python as it did in its test, on whatever device that is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
import triptych
from command_line import composed
from commands import run
from triptych.cli.runs import check_arguments
from triptych.config import ConfigError
from triptych.evaluate import evaluate
from triptych.predict import predict
from triptych.training import read_checkpoint, write_checkpoint

STEPS = ["trainer.max_steps=40", "trainer.val_check_interval=40", "optimizer.lr=3e-3", "scheduler.warmup_steps=5"]


def trained(folder: Path, *overrides: str) -> Path:
    finished = run(
        "train", *tiny.TINY, *STEPS, "batch.eval_batch_size=64", *overrides, "logger=csv", "run_dir=run", cwd=folder
    )
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


@pytest.fixture(scope="module", params=["bf16-mixed", "bf16-true"])
def classifier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    return trained(folder, "experiment=dates/classification", f"trainer.precision={request.param}")


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """What the run has answered in its test."""
    rows = [json.loads(line) for line in (directory / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 60
    return rows


def certainty(answers: list[Any], rows: list[dict[str, Any]]) -> torch.Tensor:
    """Of the right classes."""
    return torch.tensor([answer.probabilities[row["reference"]] for answer, row in zip(answers, rows, strict=True)])


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().max())


def test_answers_are_those_that_were_tested(classifier: Path, tmp_path: Path) -> None:
    """In float32 they differ by about 0.002; probabilities are exponentials of rounded logarithms there."""
    rows = rows_of(classifier)
    texts, expected = [row["input"] for row in rows], torch.tensor([row["probability"] for row in rows])
    assert distance(certainty(triptych.load(classifier).predict(texts), rows), expected) < 1e-6
    assert distance(certainty(triptych.load(classifier, "32-true").predict(texts), rows), expected) > 1e-4
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    options = [f"checkpoint={classifier}", f"input={tmp_path}/in.txt", f"output={tmp_path}/out"]
    for more, is_alike in (([], True), (["trainer=cpu"], True), (["trainer.precision=32-true"], False)):
        predict(composed(*options, *more, command="predict"))
        said = [json.loads(line)["probabilities"] for line in (tmp_path / "out").read_text().splitlines()]
        found = torch.tensor([answer[row["reference"]] for answer, row in zip(said, rows, strict=True)])
        assert (distance(found, expected) < 1e-5) == is_alike


def test_so_are_texts(tmp_path: Path) -> None:
    """The record's samples too."""
    directory = trained(tmp_path, "experiment=dates/translation", "model=decoder_only", "trainer.precision=bf16-mixed")
    rows = rows_of(directory)
    expected = [row["output"] for row in rows]
    assert triptych.load(directory).predict([row["input"] for row in rows]) == expected
    samples = json.loads((directory / "summary.json").read_text())["samples"]
    assert [sample["output"] for sample in samples] == expected[: len(samples)]


def printed(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[str, dict[str, float]]:
    """What ``evaluate`` says, in one line, and the metrics."""
    evaluate(composed(*overrides, command="evaluate"))
    out = capsys.readouterr().out
    return " ".join(out.split()), {
        name: float(value) for name, value in re.findall(r"│ ((?:val|test)/\w+) +│ +([\d.e+-]+) │", out)
    }


@pytest.mark.parametrize("precision", [None, "16-mixed"])
def test_a_run_of_gpus_is_evaluated_where_there_is_none(
    precision: str | None,
    classifier: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    checkpoint = read_checkpoint(classifier / "checkpoints" / "last.ckpt")
    settings = checkpoint["triptych"]["config"]["trainer"]
    settings |= {"accelerator": "gpu", "devices": 8, "num_nodes": 2, "strategy": "ddp"}
    settings["precision"] = precision or settings["precision"]
    write_checkpoint(checkpoint, tmp_path / "of_gpus.ckpt")
    given = f"checkpoint={tmp_path}/of_gpus.ckpt"
    recorded = json.loads((classifier / "summary.json").read_text())
    for more in ([], ["trainer=cpu"], ["trainer.accelerator=cpu"], ["trainer=ddp"]):
        said, metrics = printed(capsys, given, *more)
        assert f" on {recorded['hardware']}, {settings['precision']} " in said
        assert metrics.keys() == recorded["metrics"].keys()
        if precision is None:
            assert metrics == {name: float(f"{value:.6g}") for name, value in recorded["metrics"].items()}
    said, _ = printed(capsys, given, "trainer.precision=32-true")
    assert ", 32-true" in said
    with pytest.raises(ConfigError, match=r"^trainer\.accelerator=gpu: there is none here; expected auto or cpu"):
        printed(capsys, given, "trainer=gpu")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.precision=bf17-mixed", "trainer.precision=bf17-mixed; did you mean bf16-mixed?"),
        ("trainer.accelerator=gpus", "trainer.accelerator=gpus: expected one of auto, cpu, gpu, cuda, mps; did"),
        ("trainer.devices=2", "trainer.devices=2: evaluate only has trainer.accelerator and trainer.precision"),
    ],
)
def test_what_cannot_be_is_named(override: str, words: str, classifier: Path) -> None:
    def command() -> None:
        check_arguments([override], "evaluate")
        evaluate(composed(f"checkpoint={classifier}", override, command="evaluate"))

    with pytest.raises(ConfigError) as caught:
        command()
    assert str(caught.value).startswith(words)
