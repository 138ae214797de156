"""A plausible set of seven runs, written as files the way training leaves them."""

import csv
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import triptych.tasks
from triptych.tasks import Task

WriteRun = Callable[..., Path]
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in vars(triptych.tasks).values() if hasattr(kind, "name")}

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x.png onerror=alert(1)>"

TRANSLATION = [
    ("Donnerstag, 5. März 1998", "1998-03-05"),
    ("الخميس، ٥ مارس ١٩٩٨", "1998-03-05"),  # noqa: RUF001
    ("יום חמישי, 12 ביוני 2003", "2003-06-12"),
    ("1998年3月5日木曜日", "1998-03-05"),
    ("2011년 10월 21일 금요일", "2011-10-21"),
    ("พฤหัสบดีที่ 5 มีนาคม 2541", "1998-03-05"),
    ("lundi 14 juillet 1975", "1975-07-14"),
    ("пʼятниця, 8 серпня 1986 р.", "1986-08-08"),  # noqa: RUF001
]
CLASSIFICATION = [("الأحد، مايو", "ar"), ("1998年3月5日木曜日", "ja"), ("5.3.1998", "fi"), (HOSTILE, "hostile")]
LINES = [("Donnerstag, ", "5. März 1998"), ("木曜日 ", "1998年3月5日"), ("jeudi ", "5 mars 1998")]
PARAMS = {"full": 412_160, "encoder_only": 398_080, "decoder_only": 401_408}
LAYERS = {
    "full": {"encoder": 2, "decoder": 2},
    "encoder_only": {"encoder": 4, "decoder": 0},
    "decoder_only": {"encoder": 0, "decoder": 4},
}


def samples_of(task: str, architecture: str) -> list[dict[str, str]]:
    """Outputs of which one is wrong, not the same one for each architecture."""
    pairs = {"translation": TRANSLATION, "classification": CLASSIFICATION}.get(task, LINES)
    wrong = list(PARAMS).index(architecture)
    return [
        {
            "input": given,
            "reference": reference,
            "output": reference if index != wrong else reference[:-1] + ("9" if reference[-1].isdigit() else "n"),
        }
        for index, (given, reference) in enumerate(pairs)
    ]


def summary_of(
    architecture: str, task: str, metrics: dict[str, float], optimum: dict[str, float], seed: int
) -> dict[str, Any]:
    """A complete summary."""
    return {
        "format": 1,
        "experiment": f"dates/{task}_{architecture}",
        "architecture": architecture,
        "task": task,
        "task_info": asdict(TASKS[task].info(architecture, metrics, optimum)),
        "data": "dates",
        "seed": seed,
        "params": PARAMS[architecture],
        "non_embedding_params": PARAMS[architecture] - 65_536,
        "train_flops": 3.1e12 * PARAMS[architecture] / 4e5,
        "train_tokens": 1_843_200,
        "steps": 800,
        "wall_time_s": 74.2 + seed,
        "tokens_per_second": 24_840.5,
        "metrics": metrics,
        "optimum": optimum,
        "tested_weights": "last",
        "num_layers": LAYERS[architecture],
        "weights_sha256": "e" * 64,
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "data_sha256": "d" * 64,
        "tokenizer_sha256": "a" * 64,
        "versions": {"torch": "2.13.0", "lightning": "2.6.6"},
        "hardware": "2 CPU cores",
        "precision": "32-true",
        "tokens_per_step": 2304.0,
        "too_long": {"policy": "error", "train": 0, "validation": 0, "test": 0},
        "command": f"triptych train experiment=dates/{task} model={architecture} seed={seed}",
        "samples": samples_of(task, architecture),
    }


def write_curves(path: Path, metric: str, final: float, seed: int) -> None:
    """Curves that end at ``final``, a row for each logging event, blank where a metric was not logged."""
    noise = random.Random(f"{path}{seed}")
    spent = ["tokens", "train_flops", "elapsed_s"]
    columns = ["epoch", "step", "train/loss", "lr", "train/tokens_per_second", *spent, "val/loss", metric]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        for step in range(10, 801, 10):
            loss = 0.05 + 4 * math.exp(-step / 130) * math.exp(noise.gauss(0, 0.12))
            row = {"epoch": 0, "step": step, "tokens": 2304 * step, "train_flops": 3.9e9 * step, "elapsed_s": step / 11}
            writer.writerow({**row, "train/loss": loss, "lr": 1e-3, "train/tokens_per_second": 24_000})
            if step % 80 == 0:
                start = 2.5 if "bits" in metric else 0.0
                value = final + (start - final) * math.exp(-step / 150) + noise.gauss(0, 0.004)
                writer.writerow({**row, "val/loss": 1.1 * loss, metric: min(value, 1 + start)})


@pytest.fixture
def hostile() -> str:
    """Text that would run a script, and ask the network, in a page that does not escape it. One sample holds it."""
    return HOSTILE


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write one run directory and return it; ``changes`` are put over its summary, ``settings`` are its config,
    ``answers`` those to the test examples."""

    def write(
        architecture: str,
        task: str,
        metrics: dict[str, float],
        *,
        optimum: dict[str, float] | None = None,
        seed: int = 1,
        changes: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        answers: list[dict[str, Any]] | None = None,
        name: str = "",
    ) -> Path:
        directory = tmp_path / "runs" / f"{task}_{architecture}_seed{seed}{name}"
        directory.mkdir(parents=True)
        if settings is not None:
            own = {"seed": seed, "run_dir": str(directory), "logger": {"csv": {}}}
            (directory / "config.yaml").write_text(json.dumps({**settings, **own}), encoding="utf-8")
        if optimum is None:  # a translation that is scored by exact match alone is of dates
            is_dates = "test/exact_match" in metrics and "test/bleu" not in metrics
            optimum = {"test/exact_match": 0.993} if is_dates else {}
        summary = summary_of(architecture, task, metrics, optimum, seed) | (changes or {})
        (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        if answers is not None:
            lines = [json.dumps({"index": index, **answer}) + "\n" for index, answer in enumerate(answers)]
            (directory / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
        key = list(metrics)[-1]
        write_curves(directory / "metrics.csv", key.replace("test/", "val/"), metrics[key], seed)
        return directory

    return write


@pytest.fixture
def seven_runs(tmp_path: Path, write_run: WriteRun) -> Path:
    """Translation by two architectures, classification by three, language modeling by two; and an unfinished run."""
    ceiling = {"test/exact_match": 0.993}
    for architecture, value in (("full", 0.981), ("decoder_only", 0.972)):
        write_run(architecture, "translation", {"test/loss": 0.05, "test/exact_match": value}, optimum=ceiling)
    for architecture, value in (("full", 0.912), ("encoder_only", 0.938), ("decoder_only", 0.907)):
        write_run(architecture, "classification", {"test/accuracy": value}, optimum={"test/accuracy": 0.951})
    answers = [{"index": 0, "continuation_nats": 4.4, "continuation_bytes": 10}]
    write_run(
        "full", "language_modeling", {"test/bits_per_byte": 0.642}, optimum={"test/bits_per_byte": 0.611},
        answers=answers,
    )  # fmt: skip
    write_run(
        "decoder_only",
        "language_modeling",
        {"test/bits_per_byte": 0.829, "test/continuation_bits_per_byte": 0.634},
        optimum={"test/bits_per_byte": 0.81, "test/continuation_bits_per_byte": 0.611},
        changes={"tokenizer_sha256": "b" * 64},
        answers=answers,
    )
    unfinished = tmp_path / "runs" / "translation_killed"
    unfinished.mkdir()
    (unfinished / "metrics.csv").write_text("epoch,step,train/loss\n0,10,3.2\n", encoding="utf-8")
    return tmp_path / "runs"
