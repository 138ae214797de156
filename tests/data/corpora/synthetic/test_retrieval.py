"""A probe through a training and a comparison: what its examples say of their difficulty reaches record and page."""

import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import tiny
from commands import run
from triptych.data import sha256
from triptych.data.corpora.synthetic import Recall

SMALL = [
    *tiny.NETWORK, "data.num_train=100", "data.num_validation=20", "data.num_test=120", "batch.global_size=20",
    "trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.accelerator=cpu", "logger=csv",
    "callbacks.progress.refresh_rate=0",
]  # fmt: skip


@pytest.mark.nightly
def test_recall(tmp_path: Path) -> None:
    """Words without a tag are not scored; the examples are the same in another process."""
    axes = ["data.max_pairs=3", "data.test_max_pairs=6", "data.max_length=16"]
    command = ["train", "experiment=synthetic/recall", "model=decoder_only", "run_dir=run", *axes, *SMALL]
    finished = run(*command, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert record["train_difficulty_range"] == {"pairs": [2, 3], "length": [16, 16]}
    assert record["optimum"] == {"test/accuracy": 1}
    assert record["data"] == "synthetic/recall"
    settings = OmegaConf.load(tmp_path / "run" / "config.yaml").data
    corpus = Recall(**{key: value for key, value in settings.items() if key != "_target_"})
    assert record["data_sha256"] == sha256(corpus.splits())

    answers = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    for answer in answers:
        asked = [word for word in answer["reference"].split() if word[0] == "v"]
        assert answer["difficulty"]["pairs"] == answer["words"] == len(asked) == len(answer["output"].split())
        assert answer["difficulty"]["length"] == answer["input_words"]
        right = sum(a == b for a, b in zip(answer["output"].split(), asked, strict=True))
        assert answer["correct"] == right
    assert {answer["difficulty"]["pairs"] for answer in answers} == {2, 3, 4, 5, 6}
    total = sum(answer["words"] for answer in answers)
    assert abs(record["metrics"]["test/accuracy"] - sum(answer["correct"] for answer in answers) / total) < 1e-6

    finished = run("compare", "run", "--output", "page.html", cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', (tmp_path / "page.html").read_text())
    (switch,) = [figures for figures in map(json.loads, scripts) if "pairs" in figures]
    assert switch["pairs"]["title"] == "accuracy by pairs"
    assert switch["pairs"]["data"][0]["x"] == ["2", "3", "4", "5", "6"]
    assert [(shape["x0"], shape["x1"]) for shape in switch["pairs"]["layout"]["shapes"]] == [(-0.5, 1.5)]
