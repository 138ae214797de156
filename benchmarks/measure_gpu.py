"""Triptych on a GPU: its tests, its speed compared with other libraries, measured against planned memory, real tasks.
Run by `make gpu`, or one part by `make gpu PART=decoder`; README.md in this folder says more.

Each part stores its results in docs/gpu.json, line by line, and rewrites docs/gpu.md, which lists the parts still to
measure. A part takes nine minutes at most; longer runs on real data resume if the part is run again.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import gpu_rows
import speed_loop
import torch
from gpu_rows import Line
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from rich.console import Console
from rich.table import Table

from triptych.config import TrainConfig
from triptych.planning.batch_shapes import inspect_data
from triptych.planning.forecast import make_forecast
from triptych.planning.gpus import device_here
from triptych.storage.atomic import write_text
from triptych.training.hardware import hardware

ROOT = Path(__file__).parents[1]
SECONDS = 540
"""That a part may take."""
OUTPUTS = ROOT / "outputs" / "gpu"
LIBRARIES = ("torch", "lightning", "transformers")


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        title: of its table.
        measure: finds its lines on a device.
    """

    title: str
    measure: Callable[[torch.device], Iterable[Line]]


# Parts


def tests(name: str, device: torch.device) -> list[Line]:
    """The tests of a file in tests/gpu, with the names of those that fail or are skipped."""
    report = OUTPUTS / f"{name}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", str(min(8, os.cpu_count() or 1)), "--dist", "load",
               "--junit-xml", str(report), f"tests/gpu/{name}.py"]  # fmt: skip
    report.unlink(missing_ok=True)
    environment = {**os.environ, "TRIPTYCH_DEVICE": device.type}
    try:
        subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [Line(f"tests/gpu/{name}.py", float("nan"), "passed", note=f"not finished after {SECONDS} s")]
    cases = list(ElementTree.parse(report).iter("testcase"))
    others = {
        "failed": [case.get("name", "") for case in cases if not {"failure", "error"}.isdisjoint(x.tag for x in case)],
        "skipped": [case.get("name", "") for case in cases if case.find("skipped") is not None],
    }
    note = "; ".join(f"{how}: {', '.join(names)}" for how, names in others.items() if names)
    passed = len(cases) - sum(map(len, others.values()))
    return [Line(f"tests/gpu/{name}.py, {len(cases)} tests", passed, "passed", len(cases), note=note)]


def train(name: str, *overrides: str, device: torch.device, seconds: float = SECONDS) -> dict[str, Any] | None:
    """A run of the command in a separate directory; it resumes from its last checkpoint.

    Returns:
        its record; None: it is not finished, or failed.
    """
    run_dir = OUTPUTS / name
    accelerator = "cpu" if device.type == "cpu" else "gpu"
    command = [sys.executable, "-m", "triptych", "train", *overrides, f"trainer.accelerator={accelerator}",
               f"run_dir={run_dir}", "callbacks.progress.refresh_rate=0"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # it writes a checkpoint
        process.wait(60)
        return None
    if process.returncode:  # it has printed the reason
        return None
    record: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return record


def write_text_of_numbers() -> None:
    """Something to read in windows of any length."""
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    (OUTPUTS / "text.txt").write_text("".join(f"{i * i} squared is {i**4}.\n" for i in range(100_000)))


def loop(device: torch.device) -> Iterator[Line]:
    """The Trainer's overhead for GPT-2 124M and for a tiny model: steps per second, compared with a bare loop."""
    write_text_of_numbers()
    networks = {"a tiny network": (128, (), 90, 95), "GPT-2 124M": (16, LARGE, 98, 99)}
    for name, (batch_size, network, asked, aim) in networks.items():
        if device.type == "cpu" and network:
            continue
        rounds = speed_loop.loop(batch_size, device, network).rounds
        found: dict[str, list[float]] = {"Triptych": [], "bare PyTorch": []}
        for i in range(3 if device.type == "cuda" else 2):
            for contender in sorted(found, reverse=bool(i % 2)):
                done = rounds[contender]()
                found[contender] += [done.amount / done.seconds] * bool(i)  # the first is to warm up
        shares = [100 * ours / bare for ours, bare in zip(*found.values(), strict=True)]
        yield from (Line(f"{contender}, {name}", median(rates), "steps/s") for contender, rates in found.items())
        yield Line(f"triptych train vs. a bare loop, {name}", median(shares), "%", asked, aim)


HALF = "trainer.precision=bf16-mixed"
BASE = ["shape.d_model=768", "shape.num_heads=12", "shape.d_ff=3072"]
LARGE = ["model=gpt2/small", *BASE, "shape.num_layers=12", "shape.max_length=1024", "shape.vocab_size=50304", HALF,
         "tokenizer=bytes", "data=plain_text", f"data.dir={OUTPUTS}", "data.train=text.txt"]  # fmt: skip
DATES = ["data.num_train=4000", "shape.max_length=512"]
PLANNED = {
    "GPT-2 124M, bf16": ["experiment=dates/language_modeling", *LARGE, "batch.global_size=16"],
    "BERT base, bf16, packed": ["experiment=dates/classification", "model=bert/base", *BASE, "shape.num_layers=12",
                                HALF, "batch.global_size=256", "batch.packing=true"],
    "BART base, float32": ["experiment=dates/translation", "model=bart/base", *BASE, "shape.num_layers=6",
                           "batch.global_size=128"],
    "T5 small, relative positions, bf16": ["experiment=dates/translation", "model=t5/small", "shape.d_model=512",
                                           "shape.num_heads=8", "shape.d_ff=2048", "shape.num_layers=6", HALF,
                                           "batch.global_size=256"],
}  # fmt: skip
TINY = ["shape.d_model=64", "shape.num_layers=2", "shape.num_heads=4", "shape.d_ff=128"]
SHORT = [*TINY, "trainer.max_steps=4", "trainer.val_check_interval=2", "trainer.limit_val_batches=1",
         "trainer.limit_test_batches=1"]  # fmt: skip


def memory(device: torch.device) -> Iterator[Line]:
    """The doctor's plan compared with the peak of a run of ten steps."""
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    write_text_of_numbers()
    here = device_here("cpu" if device.type == "cpu" else "gpu")
    for name, overrides in PLANNED.items():
        given = [overrides, ["trainer.max_steps=10", "trainer.val_check_interval=10"]]
        given += [
            ["logger=csv", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"],
            DATES if "data=plain_text" not in overrides else [],
        ]
        if device.type == "cpu":
            given.append([*TINY, "batch.global_size=8", "shape.vocab_size=null"])
        flat = [override for some in given for override in some]
        with initialize_config_module("triptych.conf", version_base="1.3"):
            config = compose("train", overrides=[*flat, "run_dir=unused"])
        estimate = inspect_data(config, None, 1).estimate(config)
        planned = make_forecast(estimate, 1, here).memory.ddp(1, estimate.rows).total
        record = train(f"memory-{name.split(',')[0].replace(' ', '-')}", *flat, "resume=never", device=device)
        if record is None:
            continue
        peak = record["peak_memory_bytes"]
        sizes = f"plan {planned / 2**20:,.0f} MiB, measured {peak / 2**20:,.0f} MiB"
        note = f"{sizes}; required: within 10 %, target: within 5 %"
        yield Line(f"estimate / measured peak, {name}", planned / peak, "ratio", note=note)


def shakespeare(device: torch.device) -> list[Line]:
    """Time until tiny Shakespeare reaches 1.47 nats per character, validations included."""
    few = [] if device.type == "cuda" else [*SHORT, "data=dates", "batch.eval_stride=null"]
    record = train("shakespeare", "experiment=shakespeare/decoder_only", "logger=csv", *few, device=device)
    if record is None:
        return []
    rows = (OUTPUTS / "shakespeare" / "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    curve = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    seconds = [float(row["elapsed_s"]) for row in curve if row["val/loss"] and float(row["val/loss"]) <= 1.47]
    note = (
        f"upper limits; {record['metrics']['test/loss']:.3f} nats on the test set after {record['wall_time_s']:,.0f} s"
    )
    return [Line("time to a validation loss of 1.47 nats", min(seconds, default=float("inf")), "s", 60, 30, note)]


def real(
    experiment: str, metric: str, unit: str, asked: float | None, aim: float | None, device: torch.device
) -> list[Line]:
    """A complete run on real data."""
    few = [] if device.type == "cuda" else SHORT
    if experiment == "imdb/fine_tuning":
        few = [f"init_from={OUTPUTS / 'imdb-pretraining'}", *(o for o in few if not o.startswith("shape."))]
    record = train(experiment.replace("/", "-"), f"experiment={experiment}", "logger=csv", *few, device=device)
    if record is None:
        return []
    note = f"{record['steps']:,} steps in {record['wall_time_s']:,.0f} s"
    return [Line(experiment, record["metrics"][metric] * (100 if unit == "%" else 1), unit, asked, aim, note)]


PARTS = {
    "card": Part("The GPU", gpu_rows.card),
    **{
        name: Part(f"Tests: {what}", partial(tests, f"test_{name}"))
        for name, what in (
            ("networks", "blocks, losses and decoding against float64 and transformers"),
            ("trainings", "every architecture and task against the CPU, precisions, waits, kills"),
            ("ranks", "several processes"),
        )
    },
    "decoder": Part("Training GPT-2 124M, 1,024 tokens per text, bf16", gpu_rows.decoder),
    "encoder": Part("Training BERT base on texts of unequal length, bf16", gpu_rows.encoder),
    "full": Part("Training BART base on texts of unequal length, bf16", gpu_rows.full),
    "decoding": Part("Greedy decoding: GPT-2 124M", gpu_rows.decoding),
    "beams": Part("Beam search: BART base", gpu_rows.beams),
    "loop": Part("The training loop", loop),
    "memory": Part("Memory: the estimate of triptych doctor, divided by the measured peak", memory),
    "shakespeare": Part("Tiny Shakespeare", shakespeare),
    **{
        name: Part(title, partial(real, experiment, metric, unit, asked, aim))
        for name, title, experiment, metric, unit, asked, aim in (
            ("multi30k", "Multi30k en-de, tokenized", "multi30k/tokenised_full", "test/bleu", "BLEU", 41.0, 42.0),
            ("wikitext2", "WikiText-2", "wikitext2/decoder_only", "test/perplexity", "perplexity", 86.7, 75.0),
            ("ud", "UD English EWT", "ud_english_ewt/encoder_only", "test/accuracy", "%", 93.0, None),
            ("imdb_pretraining", "IMDB, masked language modeling", "imdb/pretraining", "test/loss", "nats", None, None),
            ("imdb", "IMDB, fine-tuning", "imdb/fine_tuning", "test/accuracy", "%", 91.1, None),
        )
    },
}  # fmt: skip


# The page


def facts(device: torch.device) -> dict[str, Any]:
    """Where and with what something was measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return {
        "device": hardware(device),
        "versions": f"Python {platform.python_version()}, {versions}, CUDA {torch.version.cuda}",
        "date": date.today().isoformat(),
        "commit": os.environ.get("COMMIT") or commit(),
    }


def commit() -> str:
    """Of the checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def figure(value: float) -> str:
    """With about four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def cells(line: dict[str, Any]) -> list[str]:
    """A row of a table."""
    wanted = ["" if line[key] is None else figure(line[key]) for key in ("asked", "aim")]
    return [line["what"], f"{figure(line['found'])} {line['unit']}", *wanted, line["note"]]


HEADER = ["", "measured", "required", "target", "note"]


def page_of(found: dict[str, Any]) -> str:
    """The page: the results, and the commands for parts that are not measured."""
    text = [
        "# On GPUs",
        "`make gpu` wrote this page; [benchmarks/README.md](../benchmarks/README.md#gpus) describes the method. "
        '"Required" is the value that the project must reach, "target" the value that it aims for. Both are '
        "lower limits, except for times, perplexities and the errors of memory estimates, where they are upper "
        'limits. In a comparison, the value is the rate of the contender before "vs.", divided by the rate of the '
        "contender after it.",
    ]
    done = {name: found[name] for name in PARTS if name in found}
    if waiting := [name for name in PARTS if not found.get(name, {}).get("whole")]:
        text.append("## Not measured")
        text.append(
            "These parts are missing or incomplete. Their commands need a computer with a CUDA GPU. "
            "`make gpu DEVICE=cpu` runs all parts at small sizes on a CPU, to test that they run."
        )
        text.append(
            "\n".join(
                ["| | command |", "| --- | --- |"] + [f"| {PARTS[n].title} | `make gpu PART={n}` |" for n in waiting]
            )
        )
    for name, part in done.items():
        rows = [HEADER, ["---"] * len(HEADER), *map(cells, part["lines"])]
        text.append(f"## {PARTS[name].title}")
        text.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        about = part["facts"]
        text.append(f"{about['device']}, {about['versions']}; {about['date']}, commit {about['commit']}.")
    return "\n\n".join(text) + "\n"


def keep(found: dict[str, Any], output: Path) -> None:
    """Writes the page and the JSON file next to it."""
    write_text(output.with_suffix(".json"), json.dumps(found, indent=2) + "\n")
    write_text(output, page_of(found))


def run(names: Sequence[str], device: torch.device, output: Path) -> None:
    """Measures some parts, and stores each line at once."""
    stored = output.with_suffix(".json")
    found: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    console = Console()
    for name in names:
        console.rule(PARTS[name].title)
        table, lines = Table(*HEADER, title=PARTS[name].title), list[dict[str, Any]]()
        for line in PARTS[name].measure(device):
            lines.append(asdict(line))
            table.add_row(*cells(lines[-1]))
            found[name] = {"facts": facts(device), "lines": lines, "whole": False}
            keep(found, output)
        if lines:
            found[name]["whole"] = True
            keep(found, output)
        console.print(table if lines else f"not finished: run make gpu PART={name} again")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; none: all")
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: small sizes, to test that it runs"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "gpu.md", help="the page; the JSON file is written next to it"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"{', '.join(unknown)}: unknown part; expected some of {', '.join(PARTS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU found; --device cpu (make gpu DEVICE=cpu) tests that everything runs")
    if arguments.device == "cpu" and arguments.output == parser.get_default("output"):
        parser.error("--device cpu does not measure a GPU; set another --output, such as outputs/gpu/cpu.md")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    run(arguments.parts or list(PARTS), torch.device(arguments.device), arguments.output)


if __name__ == "__main__":
    main()
