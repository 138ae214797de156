"""How time and memory grow with the data and with the number of runs. See README.md here."""

import argparse
import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression

import numpy as np
from page import check_output

TRIPTYCH = [sys.executable, "-P", "-m", "triptych"]
SMALL = [
    "experiment=dates/translation", "shape.d_model=16", "shape.num_heads=2", "shape.num_layers=1", "shape.d_ff=32",
    "logger=csv", "trainer.max_steps=4", "trainer.val_check_interval=2", "data.num_train=400", "data.num_validation=60",
    "data.num_test=60", "trainer.log_every_n_steps=1",
]  # fmt: skip
ARCHITECTURES = ("full", "decoder_only")
SEEDS, ANSWERS, ROWS = 5, 5_000, 10_000


def measure(command: list[str], cwd: Path) -> tuple[float, float, float]:
    """Runs a command. Returns CPU seconds, elapsed seconds, and the peak of its anonymous memory in MiB."""
    begin, peak = time.monotonic(), 0
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, int(text.partition("RssAnon:")[2].split()[0]))
        except (OSError, IndexError, ValueError):
            pass
        time.sleep(0.02)
    if status:
        raise SystemExit(f"{' '.join(command)}: status {status}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - begin, peak / 1024


def write_runs(folder: Path, count: int) -> None:
    """Directories of finished runs: two architectures with several learning rates, five seeds each. Two real runs are
    the templates; their answers and logged rows are multiplied."""
    for architecture in ARCHITECTURES:
        template = folder / "templates" / architecture
        if not template.exists():
            command = [*TRIPTYCH, "train", *SMALL, f"model={architecture}", f"run_dir={template}"]
            subprocess.run(command, check=True, capture_output=True)
    chance = random.Random(count)
    for number in range(count):
        architecture = ARCHITECTURES[number % 2]
        rate, seed = 1e-3 * 1.05 ** (number // (2 * SEEDS)), 1 + number // 2 % SEEDS
        template, run = folder / "templates" / architecture, folder / f"r{count}" / f"{architecture}-{number}"
        run.mkdir(parents=True)
        change = {"seed": f"seed: {seed}", "  lr": f"  lr: {rate!r}"}
        lines = (template / "config.yaml").read_text().splitlines()
        own = [change.get(line.partition(":")[0], line) for line in lines]
        (run / "config.yaml").write_text("\n".join(own) + "\n")
        quality = 0.5 + 0.3 * chance.random() + 0.1 * (architecture == "full")
        answers = [json.loads(line) for line in (template / "predictions.jsonl").read_text().splitlines()]
        right = 0
        with (run / "predictions.jsonl").open("w") as file:
            for index in range(ANSWERS):
                answer = {**answers[index % len(answers)], "index": index}
                is_right = chance.random() < quality
                right += is_right
                answer["output"] = answer["reference"] if is_right else "?" + answer["reference"][1:]
                file.write(json.dumps(answer) + "\n")
        with (template / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        logged = [row for row in rows if row["train/loss"]]
        validated = [row for row in rows if row["val/loss"]]
        with (run / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            for step in range(ROWS):
                row = {**logged[step % len(logged)], "step": step, "train/loss": f"{3 + chance.random() - step / ROWS}"}
                writer.writerow(row)
                if step % (ROWS // 20) == ROWS // 20 - 1:
                    value = quality * (step + 1) / ROWS
                    row = validated[0] | {"step": step, "val/exact_match": f"{value}", "elapsed_s": f"{step / 50}"}
                    writer.writerow(row | {"tokens": f"{1e3 * step}", "train_flops": f"{1e9 * step}"})
        record = json.loads((template / "summary.json").read_text())
        record |= {"seed": seed, "steps": ROWS}
        record["metrics"] |= {"test/exact_match": right / ANSWERS, "val/exact_match": quality}
        record["command"] = record["command"].replace(str(template), str(run)) + f" optimizer.lr={rate!r} seed={seed}"
        (run / "summary.json").write_text(json.dumps(record, indent=2))
        shutil.copy(template / "attention.json", run)


def write_table(folder: Path, count: int) -> None:
    """Rows of 5 to 12 words with a class, as TSV and as Parquet."""
    import pyarrow.csv
    import pyarrow.parquet

    generator = np.random.default_rng(count)
    words, lengths = _words(generator, 20_000, 12 * count).reshape(count, 12), generator.integers(5, 13, count)
    with (folder / f"{count}.tsv").open("w") as file:
        file.write("text\tlabel\n")
        file.writelines(f"{' '.join(words[i, : lengths[i]])}\t{'ab'[i % 2]}\n" for i in range(count))
    options = pyarrow.csv.ParseOptions(delimiter="\t")
    table = pyarrow.csv.read_csv(folder / f"{count}.tsv", parse_options=options)
    pyarrow.parquet.write_table(table, folder / f"{count}.parquet")


def write_pictures(folder: Path, count: int) -> None:
    """Images of 224x224 pixels as JPEG, with a class."""
    from PIL import Image

    generator = np.random.default_rng(count)
    for i in range(count):
        small = Image.fromarray(generator.integers(0, 255, (14, 14, 3), np.uint8))
        small.resize((224, 224)).save(folder / f"{i}.jpg", quality=85)
    rows = "".join(f"{i}.jpg\t{'ab'[i % 2]}\n" for i in range(count))
    (folder / f"pictures-{count}.tsv").write_text(f"file\tlabel\n{rows}")


def write_line(folder: Path, count: int) -> None:
    """One line of so many bytes."""
    generator = np.random.default_rng(count)
    (folder / f"line-{count}.txt").write_text(" ".join(_words(generator, 20_000, count // 4))[:count])


def write_sources(folder: Path, count: int) -> None:
    """So many files of Python, of ten lines each."""
    words = _words(np.random.default_rng(count), 2_000, 30 * count).reshape(count, 10, 3)
    for i in range(count):
        file = folder / f"sources-{count}" / f"{i % 100}" / f"{i}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{x}_{i} = {y} + {z}\n" for x, y, z in words[i]))


def write_vocabulary(folder: Path, count: int) -> None:
    """A text with so many different words, each twice."""
    words = np.array([f"w{i}" for i in range(count)] * 2)
    np.random.default_rng(count).shuffle(words)
    lines = [" ".join(words[i : i + 32]) for i in range(0, len(words), 32)]
    (folder / f"words-{count}.txt").write_text("\n".join(lines) + "\n")


def _words(generator: np.random.Generator, different: int, count: int) -> np.ndarray:
    """Words with the frequencies of Zipf's law (1 / rank)."""
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(generator.choice(letters, 1 + n)) for n in generator.poisson(4, different)])
    shares = 1 / np.arange(1, different + 1)
    return words[generator.choice(different, count, p=shares / shares.sum())]


FEW_STEPS = [
    "shape=tiny", "trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1", "batch.global_size=8", "logger=csv", "callbacks.progress.refresh_rate=0",
    "batch.eval_batch_size=16", "data.dir=.", "data.validation=0.01", "data.test=0.01", "run_dir=run",
]  # fmt: skip
CLASSES = ["train", "task=classification", "model=encoder_only", "data.label=label", *FEW_STEPS]
LANGUAGE = ["train", "task=language_modeling", "model=decoder_only", *FEW_STEPS]
PICTURES = [
    "data=image_files", "data.target=null", "data.channels=3", "data.size=[224,224]", "image_embedding.num_channels=3",
    "image_embedding.image_size=[224,224]", "image_embedding.patch_size=[32,32]", "data.validation=0.05",
    "data.test=0.05",
]  # fmt: skip
READ = """
import sys
from triptych.data import LabelledText
table = LabelledText(dir=".", train=sys.argv[1], validation=None, test=sys.argv[1], text="text", label="label",
                     columns=None, split_seed=0)
assert table.splits().train[-1].text
"""
READ_BY_DATASETS = """
import sys
from datasets import load_dataset
table = load_dataset("parquet", data_files=sys.argv[1], split="train", cache_dir="datasets")
assert table[len(table) - 1]["text"]
"""


@dataclass(frozen=True)
class Row:
    """Work of growing size.

    Attributes:
        unit: what is counted.
        counts: how many.
        write: makes the input in a folder.
        command: the measured command.
        is_warm: whether the caches of a first start are there.
    """

    unit: str
    counts: list[int]
    write: Callable[[Path, int], None]
    command: Callable[[int], list[str]]
    is_warm: bool = False


def _train(*arguments: str) -> Callable[[int], list[str]]:
    return lambda count: [*TRIPTYCH, *(argument.replace("COUNT", str(count)) for argument in arguments)]


ROWS_OF_TABLES = [10**3, 10**4, 10**5, 10**6]
TABLE = [*CLASSES, "data=labelled_text", "data.train=COUNT.tsv", "tokenizer=words"]
WORK = {
    "TSV, first start of a training": Row("rows", ROWS_OF_TABLES, write_table, _train(*TABLE)),
    "TSV, second start": Row("rows", ROWS_OF_TABLES, write_table, _train(*TABLE), is_warm=True),
    "Parquet, read": Row("rows", ROWS_OF_TABLES, write_table, lambda n: [sys.executable, "-c", READ, f"{n}.parquet"]),
    "Parquet, read by datasets": Row(
        "rows", ROWS_OF_TABLES, write_table, lambda n: [sys.executable, "-c", READ_BY_DATASETS, f"{n}.parquet"]
    ),
    "a text of one line, training": Row(
        "bytes", [10**4, 10**5, 10**6, 10**7], write_line,
        _train(*LANGUAGE, "data=plain_text", "data.train=line-COUNT.txt", "tokenizer=bytes", "shape.max_length=64"),
    ),
    "images, training": Row(
        "images", [100, 1_000, 4_000], write_pictures, _train(*CLASSES, *PICTURES, "data.train=pictures-COUNT.tsv")
    ),
    "source files, training": Row(
        "files", [200, 2_000, 20_000], write_sources,
        _train(*LANGUAGE, "data=source_files", "data.dir=sources-COUNT", "tokenizer=bytes",
               "batch.too_long=truncate"),
    ),
    "vocabulary, training": Row(
        "words", [8_000, 32_000, 135_000, 250_000], write_vocabulary,
        _train(*LANGUAGE, "data=text_lines", "data.train=words-COUNT.txt", "tokenizer=words",
               "tokenizer.vocab_size=300000"),
    ),
    "runs, compare": Row("runs", [10, 100, 1_000], write_runs, _train("compare", "rCOUNT")),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A measurement: CPU seconds, and the peak of anonymous memory in MiB."""

    row: str
    size: int
    cpu_s: float
    memory_mib: float


def measure_row(name: str, folder: Path, most: int) -> list[Point]:
    """Measures all sizes of a row up to ``most``."""
    row, points = WORK[name], list[Point]()
    os.environ["TRIPTYCH_CACHE"] = str(folder / "cache")
    for size in [size for size in row.counts if size <= most]:
        made = folder / "made" / f"{row.write.__name__}-{size}"
        if not made.exists():
            row.write(folder, size)
            made.parent.mkdir(exist_ok=True)
            made.touch()
        command = row.command(size)
        for _ in range(1 + row.is_warm):
            for part in ("run", *([] if row.is_warm else ["cache", "datasets"])):
                shutil.rmtree(folder / part, ignore_errors=True)
            cpu_s, _, memory = measure(command, folder)
        points.append(Point(name, size, round(cpu_s, 2), round(memory)))
        print(points[-1], flush=True)
    return points


def exponent(sizes: list[int], costs: list[float]) -> float:
    """The slope of log(cost) over log(size) at the last two sizes, of what exceeds the cost of the smallest."""
    last = [
        (math.log(size), math.log(cost - costs[0])) for size, cost in zip(sizes, costs, strict=True) if cost > costs[0]
    ]
    return linear_regression(*zip(*last[-2:], strict=True)).slope if len(last) > 1 else 0.0


INTRODUCTION = """# Growth

Written by `make growth`; [README.md](README.md) says how. CPU seconds of whole commands, and the peak of their
anonymous memory. Exponents are those of what exceeds the smallest size: 1 is growth in proportion, 0 none.

![CPU seconds and memory](NAME.svg)

| | size | CPU, s | memory, MiB | exponent of CPU, of memory |
|---|---|---|---|---|
"""


def write_page(output: Path, points: list[Point]) -> None:
    """Writes the table and its picture."""
    by_row, lines = {name: [point for point in points if point.row == name] for name in WORK}, list[str]()
    for name, found in by_row.items():
        sizes = [point.size for point in found]
        slopes = [exponent(sizes, [getattr(point, key) for point in found]) for key in CHARTS]
        for point in found:
            is_last = point is found[-1]
            cells = [
                name if point is found[0] else "",
                f"{point.size:,} {WORK[name].unit}",
                f"{point.cpu_s:,.1f}",
                f"{point.memory_mib:,.0f}",
                ", ".join(f"{slope:.1f}" for slope in slopes) if is_last else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    output.write_text(INTRODUCTION.replace("NAME", output.stem) + "\n".join(lines) + "\n")
    output.with_suffix(".svg").write_text(draw(by_row))


CHARTS = {"cpu_s": (60, "CPU seconds", 0, 3), "memory_mib": (520, "memory, MiB", 2, 4)}
"""The left end, title and powers of ten of each chart."""
COLORS = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#5d5d5d", "#a05a2c", "#111111"]
LARGEST = 8
"""The largest size, as a power of ten."""


def draw(by_row: dict[str, list[Point]]) -> str:
    """Draws two charts with logarithmic axes, as SVG."""
    parts = ['<rect width="960" height="440" fill="#fff"/>']
    for key, (left, title, low, high) in CHARTS.items():

        def x_of(size: float, left: int = left) -> float:
            return left + 55 * (math.log10(size) - 1)

        def y_of(cost: float, low: int = low, high: int = high) -> float:
            return 320 - 280 * (math.log10(max(cost, 10**low)) - low) / (high - low)

        parts.append(_text(left, 20, title, "start"))
        for power in range(low, high + 1):
            parts += [f'<path d="M{left},{y_of(10**power)}h385" stroke="#ddd"/>']
            parts += [_text(left - 6, y_of(10**power) + 4, f"{10**power:,}", "end")]
        parts += [_text(x_of(10**power), 340, f"10^{power}", "middle") for power in range(1, LARGEST + 1)]
        for color, points in zip(COLORS, by_row.values(), strict=True):
            spots = [(x_of(point.size), y_of(getattr(point, key))) for point in points]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in spots]
    for i, (color, name) in enumerate(zip(COLORS, by_row, strict=True)):
        x, y = 60 + 305 * (i % 3), 370 + 20 * (i // 3)
        parts += [f'<rect x="{x}" y="{y - 9}" width="14" height="10" fill="{color}"/>', _text(x + 20, y, name, "start")]
    style = 'viewBox="0 0 960 440" font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def main() -> None:
    """Measures the rows, prints each point, and writes the page of all that were measured so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where inputs, caches and runs are written")
    parser.add_argument("--rows", nargs="+", choices=[*WORK], default=[*WORK])
    parser.add_argument("--most", type=int, default=10**9, help="largest size")
    parser.add_argument("--output", type=Path, help="the page; its points are kept in a .json next to it")
    given = parser.parse_args()
    check_output(parser, given.output)
    given.folder.mkdir(parents=True, exist_ok=True)
    record = given.output and given.output.with_suffix(".json")
    known = [Point(**point) for point in json.loads(record.read_text())] if record and record.exists() else []
    for name in given.rows:
        known = [point for point in known if point.row != name] + measure_row(name, given.folder.resolve(), given.most)
        if record:
            record.write_text(json.dumps([asdict(point) for point in known], indent=1) + "\n")
            write_page(given.output, known)


if __name__ == "__main__":
    main()
