"""The commands as a user runs them: real processes, real files."""

import csv
import gzip
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from omegaconf import DictConfig, OmegaConf
from sacrebleu.metrics.bleu import BLEU
from safetensors.torch import load_file

import tiny
import triptych
from commands import Finished, run
from triptych.config import ConfigError
from triptych.data import Message, read_audio
from triptych.models.generation import Sampling
from triptych.report.attention_maps import attention_maps
from triptych.report.read_records import read_curves
from triptych.training.resume import state_to_resume

TINY = [*tiny.TINY, "trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.log_every_n_steps=2"]


def train(cwd: Path, *overrides: str) -> Path:
    finished = run("train", *TINY, *overrides, "run_dir=run", cwd=cwd)
    assert finished.returncode == 0, finished.stderr
    return cwd / "run"


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("translation"), "experiment=dates/translation")


@pytest.fixture(scope="module")
def classification(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("classification"), "experiment=dates/classification", "logger=csv")


@pytest.fixture(scope="module")
def shakespeare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shakespeare")
    text = "".join(f"Line {i} of a text that is long enough,\nsaid {i * i}.\n" for i in range(300))
    (folder / "my.txt").write_text(text)
    overrides = [o for o in TINY if not o.startswith("data.")]
    finished = run(
        "train", "experiment=shakespeare/decoder_only", f"data.dir={folder}", "data.train=my.txt", *overrides,
        "shape.max_length=16", "batch.eval_stride=8", "logger=csv", "run_dir=run", cwd=folder,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


def answers_of(directory: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rows of predictions.jsonl, and the metrics."""
    answers = [json.loads(line) for line in (directory / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [answer["index"] for answer in answers] == list(range(len(answers)))
    return answers, json.loads((directory / "summary.json").read_text())["metrics"]


class TestRunDirectory:
    def test_holds_what_it_should(self, translation: Path) -> None:
        for name in ("config.yaml", "metrics.csv", "summary.json", "tokenizer.json", "train.log"):
            assert (translation / name).stat().st_size > 0, name
        names = {"best.ckpt", "last.ckpt", "step-00000003.ckpt", "step-00000006.ckpt"}
        assert {p.name for p in (translation / "checkpoints").iterdir()} == names
        weights = load_file(translation / "weights.safetensors")
        network = triptych.load(translation).network.state_dict()
        assert all(torch.equal(tensor, network[name]) for name, tensor in weights.items())

    def test_the_best_of_another_run_is_no_run_yet(self, translation: Path, tmp_path: Path) -> None:
        """It is put there before the other processes have looked, and before a run may be killed."""
        config = OmegaConf.load(translation / "config.yaml")
        assert isinstance(config, DictConfig)
        config.run_dir, config.resume, config.task.label_smoothing = str(tmp_path), str(translation), 0.2
        plain: Any = OmegaConf.to_container(config)
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        (folder / "best.ckpt").hardlink_to(translation / "checkpoints" / "step-00000003.ckpt")
        found = state_to_resume(config, plain)
        assert found is not None
        assert (found.path.parent.parent, found.step) == (translation, 6)
        (folder / "step-00000003.ckpt").hardlink_to(folder / "best.ckpt")
        with pytest.raises(ConfigError, match="contains an unfinished run with task"):
            state_to_resume(config, plain)

    def test_the_record(self, translation: Path) -> None:
        record = json.loads((translation / "summary.json").read_text())
        assert record.keys() >= {
            "experiment", "architecture", "task", "data", "seed", "params", "non_embedding_params", "train_flops",
            "train_tokens", "steps", "wall_time_s", "tokens_per_second", "metrics", "weights_sha256", "git_commit",
            "data_sha256", "tokenizer_sha256", "versions",
        }  # fmt: skip
        assert (record["experiment"], record["architecture"], record["task"]) == (
            "dates/translation_full", "full", "translation",
        )  # fmt: skip
        assert record["steps"] == 6
        losses = read_curves(translation / "metrics.csv")["val/loss"].values[:2]
        assert (record["best_step"], record["best_value"]) == min(zip((3, 6), losses, strict=True), key=itemgetter(1))
        began, ended = (datetime.fromisoformat(record[key]) for key in ("began", "ended"))
        assert began.utcoffset() == timedelta(0)
        assert timedelta(seconds=record["wall_time_s"] - 1) <= ended - began < datetime.now(UTC) - began
        assert record["num_layers"] == {"encoder": 1, "decoder": 1}
        assert 0 < record["optimum"]["test/exact_match"] <= 1
        network = triptych.load(translation).network
        assert record["params"] == sum(p.numel() for p in network.parameters())
        for total in ("params", "train_flops"):
            assert record[total] == sum(record[f"{total}_by_part"].values())
        assert record["decoding"]["flops"] > 0
        assert 0.5 < record["non_padding_fraction"] <= 1
        assert record["peak_memory_bytes"] > 1e8
        assert 0 < record["prediction_latency_s"] < 60

    def test_the_answers_to_a_translation_are_those_that_were_scored(self, translation: Path) -> None:
        answers, metrics = answers_of(translation)
        outputs, references = ([answer[key] for answer in answers] for key in ("output", "reference"))
        assert metrics["test/bleu"] == pytest.approx(BLEU().corpus_score(outputs, [references]).score)
        hits = [output == reference for output, reference in zip(outputs, references, strict=True)]
        assert metrics["test/exact_match"] == pytest.approx(fmean(hits))
        record = json.loads((translation / "summary.json").read_text())
        for sample, answer in zip(record["samples"], answers, strict=False):
            assert (sample["input"], sample["output"]) == (answer["input"], answer["output"])

    def test_the_answers_of_a_classifier_are_those_that_were_scored(self, classification: Path) -> None:
        answers, metrics = answers_of(classification)
        hits = [answer["output"] == answer["reference"] for answer in answers]
        assert metrics["test/accuracy"] == pytest.approx(fmean(hits))
        nats = [-math.log(answer["probability"]) for answer in answers]
        assert metrics["test/loss"] == pytest.approx(fmean(nats), rel=1e-5)

    def test_the_windows_of_a_language_model_are_those_that_were_scored(self, shakespeare: Path) -> None:
        answers, metrics = answers_of(shakespeare)
        nats, size = (sum(answer[key] for answer in answers) for key in ("nats", "bytes"))
        assert metrics["test/bits_per_byte"] == pytest.approx(nats / math.log(2) / size)

    def test_the_series(self, translation: Path) -> None:
        with open(translation / "metrics.csv") as file:
            rows = list(csv.DictReader(file))
        logged = {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}
        for name in ("train/loss", "lr", "train/grad_norm", "train/tokens_per_second", "train/non_padding_fraction"):
            assert len(logged[name]) == 3, name
        assert len(logged["val/loss"]) == 3  # at steps 3 and 6, and once more with the final weights
        assert all(0 < share <= 1 for share in logged["train/non_padding_fraction"])
        record = json.loads((translation / "summary.json").read_text())
        spent = {"tokens": "train_tokens", "train_flops": "train_flops", "elapsed_s": "wall_time_s"}
        for name, total in spent.items():
            assert len(logged[name]) == len(rows)
            assert logged[name] == sorted(logged[name])
            assert logged[name][0] < logged[name][-1] == record[total], name

    def test_the_wandb_file_is_complete(self, translation: Path) -> None:
        (file,) = translation.glob("wandb/offline-run-*/*.wandb")
        command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(file)]
        inspected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        records = [json.loads(line) for line in inspected.splitlines()]
        kinds = {record["type"] for record in records}
        names = {name for record in records if record["type"] == "history" for name in record["history"]["item"]}
        assert {"run", "history", "exit"} <= kinds
        assert {"train/loss", "val/loss", "test/exact_match"} <= names

    @pytest.mark.parametrize("name", ["translation", "classification", "shakespeare"])
    def test_where_it_looked(self, name: str, request: pytest.FixtureRequest) -> None:
        directory: Path = request.getfixturevalue(name)
        assert (directory / "attention.json").stat().st_size < 300_000
        samples = json.loads((directory / "attention.json").read_text())["samples"]
        assert len(samples) == (1 if name == "shakespeare" else 2)  # that is one long text
        task = triptych.load(directory)
        for sample, maps in zip(samples, attention_maps(task, [s["input"] for s in samples]), strict=True):
            for kind in ("encoder", "decoder", "cross"):
                expected = getattr(maps, kind)
                assert (sample[kind] is None) == (expected is None)
                if expected is None:
                    continue
                assert tuple(sample[kind]["queries"]) == expected.queries[:40]
                assert tuple(sample[kind]["keys"]) == expected.keys[:40]
                weights = torch.tensor(sample[kind]["weights_x1000"])
                assert (weights - 1000 * expected.weights[:, :, :40, :40]).abs().max() < 0.51
                assert (weights.sum(-1) - 1000).abs().max() <= len(expected.keys) / 2

    def test_checkpoints_are_data(self, translation: Path) -> None:
        checkpoint = torch.load(translation / "checkpoints" / "last.ckpt", weights_only=True)
        assert checkpoint["triptych"]["config"]["seed"] == 1
        assert checkpoint["global_step"] == 6


@pytest.mark.parametrize("name", ["translation", "classification", "shakespeare"])
def test_evaluate_prints_what_training_printed(name: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(name)
    finished = run("evaluate", "checkpoint=run", cwd=directory.parent)
    assert finished.returncode == 0, finished.stderr
    metrics = json.loads((directory / "summary.json").read_text())["metrics"]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in finished.stdout.splitlines()]
    printed = {row[0]: float(row[1]) for row in rows if "/" in row[0] and len(row) > 1}
    assert printed == {k: float(f"{v:.6g}") for k, v in metrics.items()}


def test_same_seed_same_weights(classification: Path, tmp_path: Path) -> None:
    again = train(tmp_path, "experiment=dates/classification", "logger=csv")
    other = [json.loads((d / "summary.json").read_text())["weights_sha256"] for d in (classification, again)]
    assert other[0] == other[1]


def test_checkpoints_by_the_clock(tmp_path: Path) -> None:
    run_dir = train(
        tmp_path, "experiment=dates/classification", "logger=csv", "trainer.max_steps=100",
        "trainer.val_check_interval=100", "callbacks.checkpoints.every_n_steps=null",
        "callbacks.checkpoints.every_n_minutes=0.001", "callbacks.checkpoints.keep_latest=4",
    )  # fmt: skip
    steps = sorted(int(f.stem.removeprefix("step-")) for f in (run_dir / "checkpoints").glob("step-*.ckpt"))
    assert len(steps) == 4
    assert steps[-1] == 100
    contents = [torch.load(f, weights_only=True) for f in (run_dir / "checkpoints").glob("step-*.ckpt")]
    assert sorted(content["global_step"] for content in contents) == steps


def test_a_mistake_loses_nothing_of_an_unfinished_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"hours of work")
    (tmp_path / "short.txt").write_text("x")
    overrides = ["experiment=shakespeare/decoder_only", f"data.dir={tmp_path}", "data.train=short.txt", "run_dir=run"]
    damaged = run("train", *overrides, cwd=tmp_path)
    assert damaged.returncode == 1
    assert "last.ckpt is damaged and skipped: it is no archive of torch's" in damaged.stderr
    finished = run("train", *overrides, "resume=never", cwd=tmp_path)
    assert finished.returncode == 1
    assert "short.txt: 1 characters are too few" in finished.stderr
    assert checkpoint.read_bytes() == b"hours of work"


class TestPredict:
    TEXTS = ("3. März 1999", "March 3, 1999", "1999年3月3日", "", "3.3.1999 <eos> 3")

    def test_translates_in_order_and_in_batches(self, translation: Path) -> None:
        folder = translation.parent
        (folder / "in.txt").write_text("\n".join(self.TEXTS) + "\n")
        arguments = ("checkpoint=run", "input=in.txt", "output=out/out.txt", "batch_size=2")
        finished = run("predict", *arguments, cwd=folder)
        assert finished.returncode == 0, finished.stderr
        lines = (folder / "out" / "out.txt").read_text().split("\n")[:-1]
        assert lines == triptych.load(translation).predict(self.TEXTS)
        piped = run("predict", "checkpoint=run", cwd=folder, stdin="\n".join(self.TEXTS) + "\n")
        assert piped.stdout.split("\n")[:-1] == lines

    def test_a_line_that_is_too_long_is_named_before_anything_is_written(self, translation: Path) -> None:
        folder = translation.parent
        (folder / "long.txt").write_text("3. März 1999\n" + "3. März 1999 " * 20 + "\n")
        finished = run("predict", "checkpoint=run", "input=long.txt", "output=long.out", cwd=folder)
        assert finished.returncode == 1
        assert "long.txt, line 2: 260 tokens; the network reads at most 126" in finished.stderr
        assert not (folder / "long.out").exists()

    def test_classifies_with_probabilities(self, classification: Path) -> None:
        finished = run("predict", "checkpoint=run", cwd=classification.parent, stdin="3. März 1999\n1999年3月3日\n")
        answers = [json.loads(line) for line in finished.stdout.splitlines()]
        assert len(answers) == 2
        for answer in answers:
            assert set(answer["probabilities"]) == {"de", "en", "ja"}
            assert sum(answer["probabilities"].values()) == pytest.approx(1)
            assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)

    def test_reads_a_pipe(self, classification: Path) -> None:
        """Which is what a shell makes of input=<(command)."""
        folder = classification.parent
        os.mkfifo(folder / "pipe")
        Thread(target=(folder / "pipe").write_text, args=("3. März 1999\n",), daemon=True).start()
        piped = run("predict", "checkpoint=run", "input=pipe", cwd=folder)
        assert piped.returncode == 0, piped.stderr
        assert piped.stdout == run("predict", "checkpoint=run", cwd=folder, stdin="3. März 1999\n").stdout

    def test_continues_text(self, shakespeare: Path) -> None:
        arguments = ("checkpoint=run", "max_new_tokens=5", "temperature=1", "seed=3")
        outputs = [run("predict", *arguments, cwd=shakespeare.parent, stdin="Line 3\n").stdout for _ in range(2)]
        assert outputs[0] == outputs[1]
        lines = run("predict", *arguments, "batch_size=2", cwd=shakespeare.parent, stdin="Line 3\n" * 8).stdout
        assert len(set(lines.splitlines())) > 2  # the batches do not repeat each other's draws
        assert 0 < len(outputs[0].rstrip("\n").replace("\\n", "\n")) <= 5


def launch(folder: Path) -> Finished:
    # the middle job fails: five heads do not divide the width
    overrides = ["experiment=dates/classification", "model=decoder_only", "shape.num_heads=1,5,2", "run_dir=sweep"]
    return run("train", "-m", *TINY, *overrides, cwd=folder)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    folder = tmp_path_factory.mktemp("sweep")
    return folder, launch(folder)


class TestSweep:
    def test_one_failure_takes_no_other_along(self, sweep: tuple[Path, Finished]) -> None:
        folder, finished = sweep
        assert finished.returncode == 1
        assert "1 of 3 jobs failed" in finished.stderr
        assert "shape.num_heads=5" in finished.stderr.splitlines()[-1]
        records = [json.loads(file.read_text()) for file in folder.glob("sweep/*/summary.json")]
        assert len(records) == 2
        assert len({record["weights_sha256"] for record in records}) == 2
        assert (
            re.findall(r"^(\d of \d jobs done); (?:about|less) .* left$", finished.stdout, re.MULTILINE)
            == ["1 of 3 jobs done"] * 2
        )
        watched = run("watch", "sweep", "--once", cwd=folder, variables={"COLUMNS": "80"})
        assert all(f"│ shape.num_heads={heads} " in watched.stdout for heads in (1, 2, 5))
        assert "…" not in watched.stdout

    def test_each_job_is_a_wandb_run_of_its_own(self, sweep: tuple[Path, Finished]) -> None:
        files = [p.name for p in sweep[0].glob("sweep/*/wandb/offline-run-*/*.wandb")]
        assert len(files) == len(set(files)) == 2

    def test_the_same_command_runs_only_what_is_not_done(self, sweep: tuple[Path, Finished]) -> None:
        folder, _ = sweep
        before = {file: file.stat().st_mtime_ns for file in folder.glob("sweep/*/summary.json")}
        again = launch(folder)
        assert again.stdout.count("done already") == 2
        assert {file: file.stat().st_mtime_ns for file in folder.glob("sweep/*/summary.json")} == before

    def test_compare_reads_a_sweep(self, sweep: tuple[Path, Finished]) -> None:
        folder, _ = sweep
        finished = run("compare", "sweep", "--output", "page/report.html", cwd=folder)
        assert finished.returncode == 0, finished.stderr
        comparison = json.loads((folder / "page" / "report.comparison.json").read_text())
        assert len(comparison["runs"]) == 2
        assert comparison.keys() == {"runs", "verdicts", "configurations", "pairwise", "audit", "unfinished", "damaged"}
        assert "<html" in (folder / "page" / "report.html").read_text()


def test_a_file_that_is_no_checkpoint_is_rejected(tmp_path: Path, harmless_payload: Callable[[Path], Path]) -> None:
    for content in (b"", b"hello", b"PK\x03\x04 not a zip"):
        (tmp_path / "bad.ckpt").write_bytes(content)
        finished = run("evaluate", "checkpoint=bad.ckpt", cwd=tmp_path)
        assert finished.returncode == 1
        assert "checkpoint=bad.ckpt is damaged: it is" in finished.stderr
    marker = harmless_payload(tmp_path / "evil.ckpt")
    assert run("evaluate", "checkpoint=evil.ckpt", cwd=tmp_path).returncode == 1
    assert not marker.exists()


@pytest.fixture
def harmless_payload() -> Callable[[Path], Path]:
    """Writes a pickle that would make a file if it were ever executed."""

    class Payload:
        def __init__(self, marker: Path) -> None:
            self.marker = marker

        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(self.marker),)

    def write(path: Path) -> Path:
        marker = path.parent / "executed"
        torch.save({"triptych": Payload(marker), "state_dict": {}}, path)
        return marker

    return write


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["evaluate", "--help"], ["predict", "--help"]])
def test_help(arguments: Sequence[str], tmp_path: Path) -> None:
    finished = run(*arguments, cwd=tmp_path)
    assert finished.returncode == 0
    assert "triptych" in finished.stdout
    assert "checkpoint=" in finished.stdout or "experiment=" in finished.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    words = ["ein\x85s", "", "zwei\u2028", *(f"number {i}" for i in range(17))]
    (folder / "a.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(words).encode())
    (folder / "a.de").write_text("\n".join(words) + "\n")
    rows = [(f"{'long ' * 40 if i == 3 else ''}text {i}", i % 2) for i in range(20)]
    (folder / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [("text", "label"), *rows]))
    with gzip.open(folder / "b.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([("label", "text"), (0, 'one "quoted"'), (1, "two\nlines"), (1, "x" * 200)])
    return folder


class TestRealText:
    """Files as people have them, from the command line to the scores."""

    SMALL = (
        *tiny.NETWORK, "tokenizer=bytes", "logger=csv", "batch.global_size=4", "trainer.max_steps=3", "run_dir=run",
    )  # fmt: skip
    PAIRS = ("task=translation", "data=parallel_text", "data.train=[a.en,a.de]", "data.test=0.2", "data.validation=0.2")
    TABLE = (
        "task=classification", "data=labelled_text", "data.train=a.tsv", "data.test=b.csv.gz", "data.validation=0.2",
    )  # fmt: skip

    def train(self, model: str, *overrides: str, cwd: Path) -> Finished:
        return run("train", f"model={model}", *self.SMALL, *overrides, "data.dir=.", cwd=cwd)

    @pytest.mark.parametrize("model", ["full", "decoder_only"])
    def test_pairs(self, folder: Path, model: str) -> None:
        finished = self.train(model, *self.PAIRS, f"run_dir={model}", "task.num_beams=2", cwd=folder)
        assert finished.returncode == 0, finished.stderr
        summary = json.loads((folder / model / "summary.json").read_text())
        assert summary["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        assert summary["signatures"]["bleu"] in finished.stderr
        assert summary["too_long"] == {"policy": "error", "train": 0, "validation": 0, "test": 0}
        evaluated = run("evaluate", f"checkpoint={model}", "num_beams=1", cwd=folder)
        assert "tok:13a" in evaluated.stdout, evaluated.stderr
        best = ("num_beams=4", "num_return_sequences=3", "length_penalty=0", "max_new_tokens=8")
        predicted = run("predict", f"checkpoint={model}", *best, cwd=folder, stdin="ein\x85s\n\n")
        answers = [json.loads(line) for line in predicted.stdout.split("\n")[:-1]]
        assert [len(answer) for answer in answers] == [3, 3], predicted.stderr
        for answer in answers:
            scores = [candidate["score"] for candidate in answer]
            assert scores == sorted(scores, reverse=True)

    def test_table(self, folder: Path) -> None:
        """What is too long is counted and printed, and no test example is dropped."""
        finished = self.train("encoder_only", *self.TABLE, "batch.too_long=drop", "run_dir=drop", cwd=folder)
        assert finished.returncode == 0, finished.stderr
        assert "more than shape.max_length=128 tokens and are dropped" in finished.stderr
        assert "1 of 3 test examples have more than shape.max_length=128 tokens and are truncated" in finished.stderr
        summary = json.loads((folder / "drop" / "summary.json").read_text())
        assert summary["too_long"] == {"policy": "drop", "train": 1, "validation": 0, "test": 1}
        matrix = summary["confusion_matrix"]
        assert matrix["labels"] == ["0", "1"]
        assert [sum(row) for row in matrix["counts"]] == [1, 2]
        predicted = run("predict", "checkpoint=drop", cwd=folder, stdin="x" * 200 + "\n")
        assert "1 of 1 lines are truncated" in predicted.stderr
        assert json.loads(predicted.stdout)["label"] in ("0", "1")
        (folder / "precious.txt").write_text("x\n")
        refused = run("predict", "checkpoint=drop", "input=precious.txt", "output=./precious.txt", cwd=folder)
        assert "would be overwritten" in refused.stderr
        assert (folder / "precious.txt").read_text() == "x\n"
        piped = run("predict", "checkpoint=drop", "output=precious.txt", cwd=folder, stdin="x\n")
        assert piped.returncode == 0, piped.stderr  # an old answer is no input
        refused = run("predict", "checkpoint=drop", "num_beams=2", cwd=folder, stdin="x\n")
        assert refused.returncode == 1
        assert "num_beams=2: classification does not generate text" in refused.stderr

    def test_evaluate_notices_other_data(self, folder: Path) -> None:
        for name in ("x.en", "x.de"):
            (folder / name).write_text("".join(f"line {i}\n" for i in range(20)))
        finished = self.train("full", *self.PAIRS, "data.train=[x.en,x.de]", "run_dir=same", cwd=folder)
        assert finished.returncode == 0, finished.stderr
        assert run("evaluate", "checkpoint=same", cwd=folder).stderr == ""
        (folder / "x.de").write_text("".join(f"Zeile {i}\n" for i in range(20)))
        assert "not the examples of the training" in run("evaluate", "checkpoint=same", cwd=folder).stderr

    def test_evaluate_reads_a_test_file_alone(self, folder: Path) -> None:
        """Not what was trained on, which need not be there any more; its parts may be given with it."""
        for name in ("y.en", "y.de", "new.en", "new.de"):
            (folder / name).write_text("".join(f"line {i} of {name}\n" for i in range(20)))
        finished = self.train("full", *self.PAIRS, "data.train=[y.en,y.de]", "run_dir=alone", cwd=folder)
        assert finished.returncode == 0, finished.stderr
        again = run("evaluate", "checkpoint=alone", "data.validation=[new.en,new.de]", cwd=folder)
        assert again.returncode == 0, again.stderr
        assert "these are not the examples of the training" in again.stderr
        for name in ("y.en", "y.de"):
            (folder / name).unlink()
        commands = [
            ["data.test=[new.en,new.de]"],
            ["data=parallel_text", "data.dir=.", "data.test=[new.en,new.de]"],
            ["data.test=[new.en,new.de]", "data.validation=[new.en,new.de]"],
        ]
        printed = []
        for overrides in commands:
            finished = run("evaluate", "checkpoint=alone", *overrides, cwd=folder)
            assert finished.returncode == 0, finished.stderr
            assert finished.stderr == ""
            printed.append(dict(re.findall(r"│ ((?:val|test)/\w+) +│ +([\d.e+-]+) │", finished.stdout)))
        assert printed[0] == printed[1] == {k: v for k, v in printed[2].items() if k.startswith("test/")}
        assert {name.partition("/")[0] for name in printed[2]} == {"val", "test"}
        for overrides, words in (
            (["data.test=0.5"], "data.train=y.en: no such file"),
            (["data=parallel_text", "data.dir=.", "data.test=0.5"], "data.train is missing: set data.train="),
            (["data.tset=[new.en,new.de]"], "data.tset: ParallelText has no such setting; did you mean test?"),
            (["data.test=[new.en,nex.de]"], "data.test=nex.de: no such file in data.dir=.; did you mean new.de?"),
        ):
            refused = run("evaluate", "checkpoint=alone", *overrides, cwd=folder)
            assert refused.returncode == 1
            assert words in refused.stderr


def test_nothing_stays_frozen_until_python_ends(tmp_path: Path) -> None:
    """Imports are kept from the search for garbage. Python never frees what is kept so, and nanobind (in triton) says
    so of each of its objects: 27 lines after every command, with the usual build of torch."""
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen at the end:', gc.get_freeze_count()))\n"
        "from triptych.cli import main\n"
        "main()\n"
        "print('frozen after the command:', gc.get_freeze_count() > 1000)"
    )
    (tmp_path / "empty.ckpt").touch()
    command = [sys.executable, "-c", script, "predict", "checkpoint=empty.ckpt"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.stdout.splitlines() == ["frozen after the command: True", "frozen at the end: 0"], finished.stderr


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides = ["task=chat", "data=date_instructions", "model=decoder_only", "data.turns=1", "task.max_new_tokens=9"]
    return train(tmp_path_factory.mktemp("chat"), *overrides, "logger=csv")


class TestChat:
    """A conversation in the terminal."""

    def test_what_is_said_goes_along(self, chatting: Path) -> None:
        folder = chatting.parent
        said = run("chat", "run", cwd=folder, stdin="sort: 1999-03-03\n\nwhich weekday is it\n/new\nsort: 1999-03-03\n")
        assert said.returncode == 0, said.stderr
        task, talk, expected = triptych.load(chatting), list[Message](), list[str]()
        for text in ("sort: 1999-03-03", "which weekday is it"):
            talk.append(Message("user", text))
            expected += map(str, task.predict([talk]))
            talk.append(Message("assistant", expected[-1]))
        assert said.stdout == "".join(f"{answer}\n" for answer in [*expected, expected[0]])

    def test_settings_of_an_answer(self, chatting: Path) -> None:
        options = ("--system", "Be brief.", "--temperature", "3", "--seed", "4", "--max-new-tokens", "5")
        said = run("chat", "run/checkpoints/last.ckpt", *options, cwd=chatting.parent, stdin="sort: 1\n")
        predictor = triptych.load(chatting)
        predictor.task.sampling, predictor.task.max_new_tokens = Sampling(3.0, seed=4), 5
        assert (
            said.stdout == f"{predictor.predict([[Message('system', 'Be brief.'), Message('user', 'sort: 1')]])[0]}\n"
        )

    def test_conversations_of_a_file(self, chatting: Path) -> None:
        folder = chatting.parent
        talk = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        (folder / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in (talk, {"messages": talk[:1]})))
        found = run("predict", "checkpoint=run", "input=talks.jsonl", cwd=folder)
        messages = [Message(message["role"], message["content"]) for message in talk]
        expected = triptych.load(chatting).predict([messages, messages[:1]])
        assert found.stdout.split("\n")[:-1] == expected, found.stderr
        assert run("predict", "checkpoint=run", cwd=folder, stdin="a\n").stdout.split("\n")[:-1] == expected[1:]
        (folder / "talks.jsonl").write_text(f"{json.dumps(talk)}\n{json.dumps(talk[:2])}\n")
        refused = run("predict", "checkpoint=run", "input=talks.jsonl", cwd=folder)
        assert "talks.jsonl, line 2: the last message is of 'assistant'; expected one of 'user'" in refused.stderr
        refused = run("predict", "checkpoint=run", cwd=folder, stdin="a\n <sep>\n")
        assert "standard input, line 2: message 1 has '<sep>' in it" in refused.stderr

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["none"], "none: no such"),
            (["run", "--temperature", "-1"], "temperature=-1.0: expected a finite number, 0"),
            (["run", "--max-new-tokens", "0"], "--max-new-tokens 0: expected at least 1"),
            (["run", "--max-new-tokens", "1000"], "--max-new-tokens 1000: expected at most 128, the model's shape"),
            (["run", "--system", " "], "--system: message 1 of system is empty"),
            (["run", "--system", "a <eos>"], "--system: message 1 has '<eos>' in it"),
        ],
    )
    def test_mistakes(self, chatting: Path, arguments: list[str], reason: str) -> None:
        refused = run("chat", *arguments, cwd=chatting.parent, stdin="a\n")
        assert refused.returncode == 1
        assert reason in refused.stderr

    def test_what_cannot_be_read(self, chatting: Path) -> None:
        folder = chatting.parent
        refused = run("chat", "run", cwd=folder, stdin="a\n\nb <sep>\n")
        assert "standard input, line 3: message 3 has '<sep>' in it" in refused.stderr
        (folder / "talks.jsonl").write_text('{"massages": []}\n')
        refused = run("predict", "checkpoint=run", "input=talks.jsonl", cwd=folder)
        assert "line 1: no messages; there are massages; did you mean massages?" in refused.stderr
        long = [{"role": "user", "content": "a" * 300}]
        (folder / "talks.jsonl").write_text(f"{json.dumps(long)}\n")
        answered = run("predict", "checkpoint=run", "input=talks.jsonl", cwd=folder)
        assert "1 of 1 conversations are too long: their beginnings are forgotten" in answered.stderr

    def test_a_model_of_another_task(self, classification: Path) -> None:
        refused = run("chat", "run", cwd=classification.parent, stdin="a\n")
        assert "run: trained with task=classification; expected a model trained with task=chat" in refused.stderr


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two speakers, whose sounds stand beside it."""
    folder = tmp_path_factory.mktemp("hearing")
    rows = ["file\ttarget\tspeaker"]
    for i in range(12):
        soundfile.write(folder / f"{i}.wav", 0.3 * np.sin(np.arange(3000) * (0.1 + 0.02 * i)), 8000)
        rows.append(f"{i}.wav\tword\t{'ab'[i % 2]}")
    soundfile.write(folder / "silent.wav", np.zeros(3000), 8000)
    soundfile.write(folder / "short.wav", [0.1, 0.2, 0.1], 8000)
    soundfile.write(folder / "long.wav", 0.3 * np.sin(np.arange(40_000)), 8000)
    (folder / "no.wav").write_text("no sound")
    (folder / "table.tsv").write_text("\n".join(rows) + "\n")
    data = ["data=audio_files", "data.dir=.", "data.train=table.tsv", "data.validation=0.2", "data.test=0.2"]
    overrides = [option for option in TINY if not option.startswith("data.")]
    finished = run(
        "train", *overrides, *data, "data.speaker=speaker", "task=transcription", "model=encoder_only",
        "batch.global_size=4", "tokenizer=characters", "audio_embedding.rate=8000", "audio_embedding.num_mels=8",
        "logger=csv", "run_dir=run", cwd=folder,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return folder


class TestHear:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("silent.wav\ta", "silent.wav: the audio is silent"),
            ("short.wav\ta", "0.0004 s of audio; expected more than half a window (audio_embedding.window=0.025)"),
            ("long.wav\ta", "5.0 s of audio; the network supports at most 2.6 s"),
            ("no.wav\ta", "no.wav: not a readable audio file"),
            ("none.wav", "none.wav: no such file"),
            (" ", "an empty line; expected the path of a sound"),
        ],
    )
    def test_what_cannot_be_heard(self, hearing: Path, line: str, reason: str) -> None:
        refused = run("predict", "checkpoint=run", cwd=hearing, stdin=f"0.wav\ta\n{line}\n")
        assert refused.returncode == 1
        assert f"standard input, line 2: {reason}" in refused.stderr
        assert "Traceback" not in refused.stderr

    def test_speakers_are_named_behind_a_tab(self, hearing: Path) -> None:
        answered = run("predict", "checkpoint=run", cwd=hearing, stdin="0.wav\ta\n2.wav\ta\n3.wav\n")
        assert "1 of 3 lines name no speaker (PATH, tab, SPEAKER)" in answered.stderr
        sounds = [read_audio(hearing / f"{i}.wav")[0] for i in (0, 2, 3)]
        named = [replace(sound, speaker="a" if i < 2 else "") for i, sound in enumerate(sounds)]
        assert answered.stdout.split("\n")[:-1] == triptych.load(hearing / "run").predict(named)


def test_texts_in_json_may_have_several_lines(shakespeare: Path) -> None:
    folder = shakespeare.parent
    (folder / "texts.jsonl").write_text('"Line 3\\nof"\n')
    answered = run("predict", "checkpoint=run", "input=texts.jsonl", "max_new_tokens=5", cwd=folder)
    expected = triptych.load(shakespeare)
    expected.task.max_new_tokens = 5
    assert answered.stdout.split("\n")[:-1] == [text.replace("\n", "\\n") for text in expected.predict(["Line 3\nof"])]
    (folder / "texts.jsonl").write_text("[1]\n")
    refused = run("predict", "checkpoint=run", "input=texts.jsonl", cwd=folder)
    assert "texts.jsonl, line 1: [1]; expected a JSON text" in refused.stderr
