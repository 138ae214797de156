"""Start-up cost: the first step of a small run, and a sweep of many small runs. See README.md here."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TINY = [
    "shape.d_model=16", "shape.num_heads=2", "shape.num_layers=1", "shape.d_ff=32", "batch.global_size=20",
    "logger=csv",
]  # fmt: skip
RUN = ["experiment=dates/classification", "model=encoder_only", *TINY]
SMALL = ["data.num_train=400", "data.num_validation=60", "data.num_test=60", "data.languages=[de,en,ja]"]
STEPS = 50


def measure(command: list[str], cwd: str, until: Path | None = None) -> tuple[float, float]:
    """Seconds of the clock and of the processor that a command takes.

    Args:
        cwd: where it runs.
        until: ends it when this table has a row; None: it runs to its end.
    """
    used, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if until is not None and until.exists() and until.read_text().count("\n") > 1:
                process.kill()
            time.sleep(0.005)
    taken, now = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def print_starts(rounds: int) -> None:
    """The first step of a run, compared with the imports of torch and Lightning, in turns."""
    python = [sys.executable, "-P"]
    ways = {
        "imports of torch and Lightning alone": [],
        "first step, 400 examples": SMALL,
        "first step, 200,000 examples": [],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):  # the first fills the caches
            for name, overrides in ways.items():
                command, until = [*python, "-c", "import torch, lightning"], None
                if "step" in name:
                    run = f"{folder}/{len(overrides)}-{number}"
                    own = [*RUN, *overrides, "trainer.log_every_n_steps=1", f"run_dir={run}"]
                    command, until = [*python, "-m", "triptych", "train", *own], Path(run) / "metrics.csv"
                found[name].append(measure(command, folder, until))
    print("| | elapsed, s | CPU, s | relative to the imports | first time, CPU, s |")
    print("|---|---|---|---|---|")
    imports = median(cpu for _, cpu in found["imports of torch and Lightning alone"][1:])
    for name, ((_, first), *times) in found.items():
        clock, cpu = (median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {clock:.1f} | {cpu:.1f} | {cpu / imports:.2f} | {first:.1f} |")


def print_sweep(jobs: int) -> None:
    """A local sweep, two at once, compared with the same steps in one process."""
    triptych = [sys.executable, "-P", "-m", "triptych", "train"]
    with tempfile.TemporaryDirectory() as folder:
        one = [*triptych, *RUN, *SMALL, f"trainer.max_steps={jobs * STEPS}", "run_dir=one"]
        clock, cpu = measure(one, folder)
        sweep = [*triptych, "-m", *RUN, *SMALL, f"trainer.max_steps={STEPS}", f"seed=range(1,{jobs + 1})"]
        sweep_clock, sweep_cpu = measure([*sweep, "hydra.launcher.n_jobs=2", "run_dir=sweep"], folder)
        done = len(list(Path(folder).glob("sweep/*/summary.json")))
    print(f"| {jobs * STEPS} steps | elapsed, s | CPU, s | steps per second | relative to one process |")
    print("|---|---|---|---|---|")
    print(f"| one process | {clock:.1f} | {cpu:.1f} | {jobs * STEPS / clock:.0f} | 1 |")
    rate = done * STEPS / sweep_clock
    print(
        f"| {done} runs, two at once | {sweep_clock:.1f} | {sweep_cpu:.1f} | {rate:.0f} | {clock / sweep_clock:.2f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=100)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print_starts(given.rounds)
    print()
    print_sweep(given.jobs)
