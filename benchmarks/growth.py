"""How the cost of `triptych compare` grows with the number of runs. See README.md here."""

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("counts", type=int, nargs="+")
    parsed = parser.parse_args()
    for count in parsed.counts:
        if not (parsed.folder / f"r{count}").exists():
            write_runs(parsed.folder, count)
        print(count, measure([*TRIPTYCH, "compare", f"r{count}"], parsed.folder))
