"""Memory and start-up of a language model's training while its text grows: see README.md here."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

STEPS = 20
COMMAND = (
    "train task=language_modeling model=decoder_only data=plain_text shape=tiny "
    f"data.validation=0.001 data.test=0.001 batch.global_size=16 batch.eval_batch_size=4 "
    f"trainer.max_steps={STEPS} trainer.val_check_interval={STEPS} "
    "trainer.limit_val_batches=2 trainer.limit_test_batches=2 trainer.log_every_n_steps=1 logger=csv"
).split()


def write_text(path: Path, megabytes: float) -> None:
    """Words of Zipf's frequencies (1/rank), in sentences, lines and paragraphs."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(generator.choice(letters, size=1 + n)) for n in generator.poisson(4, 50_000)])
    shares = 1 / np.arange(1, len(words) + 1)
    ends = np.array([" ", ". ", ", ", "\n", "\n\n"])
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            drawn = words[generator.choice(len(words), 100_000, p=shares / shares.sum())]
            after = ends[generator.choice(len(ends), 100_000, p=[0.8, 0.08, 0.08, 0.03, 0.01])]
            file.write("".join(np.char.add(drawn, after)))


def measure(folder: Path, tokenizer: str, name: str) -> dict[str, float]:
    """Runs a training. Returns the seconds from the command to its milestones, the seconds of the processor until then
    (all threads together; on a busy machine these say more), and the most anonymous memory: what of a process is not
    the content of files, in MiB."""
    run = folder / f"run-{time.time_ns()}"
    files = [f"data.dir={folder}", f"data.train={name}", f"tokenizer={tokenizer}", f"run_dir={run}"]
    command = [sys.executable, "-m", "triptych", *COMMAND, *files]
    environment = os.environ | {"TRIPTYCH_CACHE": str(folder / "cache")}
    log = folder / "log.txt"
    begin, times, peak, ticks = time.monotonic(), {}, 0.0, ["0"]
    with open(log, "w") as output, subprocess.Popen(command, stderr=output, stdout=output, env=environment) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, float(status.partition("RssAnon:")[2].split()[0]) / 1024)
                ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            except (OSError, IndexError):  # it ends
                pass
            said = log.read_text()
            metrics = run / "metrics.csv"
            reached = {
                "reading": "reading plain_text" in said,
                "ready": "parameters, " in said,
                "first step": metrics.exists() and metrics.read_text().count("\n") > 1,
            }
            for milestone, is_reached in reached.items():
                if is_reached and milestone not in times:
                    times[milestone] = time.monotonic() - begin
                    times[f"{milestone}, processor"] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(log.read_text())
    return {**times, "peak": peak}


def main() -> None:
    """Measures each size twice: the first run tokenises, the second finds it done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where texts, cache and runs are written")
    parser.add_argument("tokenizer", choices=["bytes", "characters", "words", "bpe", "unigram", "wordpiece"])
    parser.add_argument("megabytes", type=float, nargs="*", default=[10.0, 1000.0], help="of the texts")
    given = parser.parse_args()
    folder, tokenizer, sizes = given.folder, given.tokenizer, given.megabytes
    folder.mkdir(parents=True, exist_ok=True)
    print("| MB | run | anonymous memory, MiB | from reading to ready, s (CPU) | first step, s (CPU) |")
    print("|---|---|---|---|---|", flush=True)
    for size in sizes:
        name = f"{size:g}.txt"
        write_text(folder / name, size)
        for run in ("first", "second"):
            found = measure(folder, tokenizer, name)
            ready, work = (found[f"ready{kind}"] - found[f"reading{kind}"] for kind in ("", ", processor"))
            first, all_work = (found[f"first step{kind}"] for kind in ("", ", processor"))
            times = f"{ready:.1f} ({work:.1f}) | {first:.1f} ({all_work:.1f})"
            print(f"| {size:g} | {run} | {found['peak']:.0f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
