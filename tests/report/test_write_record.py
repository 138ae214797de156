"""The record of a run: what is in it is true, and nothing that comes after the training can lose it."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny
import triptych
from commands import Finished, run

TINY = [*tiny.TINY, "trainer.max_steps=6", "trainer.val_check_interval=2", "trainer.accelerator=cpu", "logger=csv"]
CLASSIFICATION = "experiment=dates/classification"
BEST_OF_AVERAGES = ["callbacks=[default,ema]", "test_weights=best", "callbacks.ema.decay=0.5"]


def summary_of(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return record


def validated(directory: Path) -> list[float]:
    """The losses of the validations during the training; the last row is of the weights that are tested."""
    with open(directory / "metrics.csv", newline="") as file:
        return [float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]][:-1]


def words(finished: Finished) -> str:
    return " ".join((finished.stdout + finished.stderr).split())


class TestTaskFromOutside:
    """A package of a user's own, chosen by --config-dir and TRIPTYCH_ALLOW."""

    TASKS = """
import lightning as L
import torch
from triptych.data import Dates
from triptych.tasks import Classification

class Language(Classification):
    name = "language"

class Mute(Language):
    def predict_batch(self, texts):
        raise KeyError("no answer")

class Placed(Language):
    def predict_batch(self, texts):
        assert MODULES[0].device.index == 0, MODULES[0].device
        return super().predict_batch(texts)

MODULES = []

class Elsewhere(L.Callback):
    def setup(self, trainer, pl_module, stage):
        MODULES.append(pl_module)
        trainer.strategy._root_device = torch.device("cpu", 0)

class MoreDates(Dates):
    def optimum(self, task, architecture, examples):
        raise ZeroDivisionError("no optimum")

    def floor(self, task, examples):
        return {"accuracy": len(examples) / 240}
"""

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        (tmp_path / "mine.py").write_text(self.TASKS)
        for name, content in {
            "task/language.yaml": "_target_: mine.Language\nlabel_smoothing: 0.0\n",
            "task/mute.yaml": "_target_: mine.Mute\nlabel_smoothing: 0.0\n",
            "task/placed.yaml": "_target_: mine.Placed\nlabel_smoothing: 0.0\n",
            "data/more_dates.yaml": "defaults: [dates]\n_target_: mine.MoreDates\n",
        }.items():
            file = tmp_path / "conf" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return tmp_path

    def train(self, folder: Path, *overrides: str) -> Finished:
        return run(
            "train", "--config-dir=conf", *TINY, "model=encoder_only", *overrides, cwd=folder,
            variables={"PYTHONPATH": str(folder), "TRIPTYCH_ALLOW": "mine."},
        )  # fmt: skip

    def test_has_a_record(self, outside: Path) -> None:
        finished = self.train(outside, "task=language", "data=more_dates", "run_dir=run")
        assert finished.returncode == 0, finished.stdout + finished.stderr
        record = summary_of(outside / "run")
        assert record["task"] == "language"
        assert 0 <= record["metrics"]["test/accuracy"] <= 1
        assert (record["optimum"], record["floor"]) == ({}, {"test/accuracy": 0.25})
        assert "the Bayes-optimal score (ZeroDivisionError: no optimum, mine.py line" in words(finished)
        assert len(record["samples"]) == 8
        assert len((outside / "run" / "predictions.jsonl").read_text().splitlines()) == 60

    def test_whose_answers_fail_loses_these_alone(self, outside: Path) -> None:
        command = ["task=mute", "data=more_dates", "run_dir=run"]
        finished = self.train(outside, *command)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert "Traceback" not in finished.stdout + finished.stderr
        for what in ("samples", "the prediction latency", "attention.json"):
            assert f"left out of the record: {what} (KeyError: 'no answer', mine.py line" in words(finished)
        record = summary_of(outside / "run")
        assert (record["samples"], record["prediction_latency_s"]) == ([], None)
        assert 0 <= record["metrics"]["test/accuracy"] <= 1
        assert len((outside / "run" / "predictions.jsonl").read_text().splitlines()) == 60
        assert (outside / "run" / "weights.safetensors").exists()
        again = self.train(outside, *command)
        assert again.returncode == 0
        assert "finished: nothing to do" in words(again)

    def test_is_recorded_where_it_was_trained(self, outside: Path) -> None:
        """Lightning leaves the network on the CPU. The first CPU is another device for torch than the CPU, so it can
        stand for a GPU here."""
        callback = "+callbacks.elsewhere._target_=mine.Elsewhere"
        finished = self.train(outside, "task=placed", "data=more_dates", callback, "run_dir=run")
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert "AssertionError" not in words(finished)
        record = summary_of(outside / "run")
        assert len(record["samples"]) == 8
        assert record["prediction_latency_s"] > 0


def test_the_best_average_is_the_one_that_is_validated_and_tested(tmp_path: Path) -> None:
    """By a metric that gets worse while the loss falls, so that the last is another one."""
    settings = ["callbacks.checkpoints.monitor=val/calibration_error", "optimizer.lr=0.3", "scheduler=constant"]
    overrides = [CLASSIFICATION, *TINY, *BEST_OF_AVERAGES, *settings, "run_dir=run"]
    finished = run("train", *overrides, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    losses = validated(tmp_path / "run")
    assert losses[0] > losses[-1]
    assert summary_of(tmp_path / "run")["metrics"]["val/loss"] == pytest.approx(losses[0], rel=1e-6)
    tested = triptych.load(tmp_path / "run" / "checkpoints" / "best.ckpt").network.state_dict()
    assert all(torch.equal(t, tested[n]) for n, t in load_file(tmp_path / "run" / "weights.safetensors").items())


def test_a_run_that_resumes_from_another_keeps_its_best(tmp_path: Path) -> None:
    """The best came before, and nothing after it is better."""
    settings = [CLASSIFICATION, *TINY, "test_weights=best", "scheduler=constant"]
    first = run("train", *settings, "run_dir=first", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    second = [*settings, "run_dir=second", "resume=first", "optimizer.lr=30", "trainer.max_steps=12"]
    finished = run("train", *second, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert min(validated(tmp_path / "second")) > min(validated(tmp_path / "first"))
    record, earlier = (summary_of(tmp_path / name) for name in ("second", "first"))
    assert record["metrics"] == pytest.approx(earlier["metrics"], rel=1e-6)
    kept = ("began", "best_step", "best_value")
    assert [record[key] for key in kept] == [earlier[key] for key in kept]
    assert record["ended"] >= earlier["ended"] >= record["began"]

    (tmp_path / "first" / "checkpoints" / "best.ckpt").unlink()
    alone = tmp_path / "alone.ckpt"
    (tmp_path / "second" / "checkpoints" / "last.ckpt").rename(alone)
    third = [*second, "run_dir=third", "resume=alone.ckpt", "trainer.max_steps=14"]
    refused = run("train", *third, cwd=tmp_path)
    assert refused.returncode == 1
    assert "test_weights=best: the best checkpoint of resume=alone.ckpt" in words(refused)
    assert "expected test_weights=last, or that file as best.ckpt" in words(refused)


class TestOverfitting:
    """Twenty dates, memorized: the validation loss falls, then rises."""

    FEW = (
        *(CLASSIFICATION, *TINY, "data.num_train=20", "trainer.max_steps=80", "trainer.val_check_interval=4"),
        *("optimizer.lr=2e-2", "block.dropout=0"),
    )

    @pytest.mark.parametrize(
        ("more", "says_so"),
        [
            ([], True),
            (["test_weights=best"], False),
            (["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=8"], False),
            (["trainer.max_steps=8"], False),
        ],
        ids=str,
    )
    def test_a_run_says_so_at_its_end(self, more: list[str], says_so: bool, tmp_path: Path) -> None:
        finished = run("train", *self.FEW, "run_dir=run", *more, cwd=tmp_path)
        assert finished.returncode == 0, finished.stderr
        assert "next: triptych predict checkpoint=run input=FILE, or triptych compare run OTHER_RUN" in words(finished)
        record = summary_of(tmp_path / "run")
        assert ("overfitting: val/loss was best after" in words(finished)) == says_so
        if says_so:
            assert record["best_step"] < 0.7 * record["steps"]
            assert f"best after {record['best_step']} of 80 steps" in words(finished)
