"""Which architecture learns most grammar from the same two million words? Trains and scores the runs of grammar.md.

    python benchmarks/grammar.py --imdb FOLDER --blimp FOLDER --work FOLDER --minutes 60
    python benchmarks/grammar.py --imdb FOLDER --blimp FOLDER --work FOLDER --report

``--imdb`` has train.tsv.gz with columns id and text; ``--blimp`` has blimp.jsonl or blimp.jsonl.gz. The first command
starts jobs for that long; give it again to continue. A job that a signal stops resumes where it was.
"""

import argparse
import csv
import gzip
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grammar_report import write_report

WORDS = 2_000_000
HELD_OUT = 0.01
"""Share of the words for the validation set, and again for the test set."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z])")
LONGEST = 45
"""Words of the longest sentence; longer ones are left out."""

COMMON = (
    "data=text_lines data.dir={data} data.train=train.txt data.validation=validation.txt data.test=test.txt "
    "tokenizer=bpe tokenizer.vocab_size=4096 shape.d_model=128 shape.num_heads=4 shape.num_layers=4 shape.d_ff=512 "
    "shape.max_length=64 block/position=rotary block.dropout=0.0 batch.global_size=64 batch.too_long=truncate "
    "optimizer.weight_decay=0.1 scheduler.warmup_steps=200 trainer.val_check_interval=250 trainer.precision=bf16-mixed "
    "logger=csv callbacks.progress.refresh_rate=0 match=train_flops"
)
ARMS = {
    "decoder": "task=language_modeling model=decoder_only",
    "encoder": "task=denoising model=encoder_only task.whole_word_masking=true task.copies_per_text=10",
    "diffusion": "task=language_modeling model=encoder_only",
    "hybrid": "task=language_modeling model=decoder_only task.masked_share=0.5",
    "full": "task=denoising model=full shape.num_layers=2 task.mask_prob=0.3 task.copies_per_text=10",
}
"""The overrides of each arm."""
METHODS = {
    "decoder": ["log_likelihood"],
    "encoder": ["pseudo_log_likelihood_l2r", "pseudo_log_likelihood"],
    "diffusion": ["left_to_right", "pseudo_log_likelihood_l2r"],
    "hybrid": ["log_likelihood", "pseudo_log_likelihood_l2r"],
    "full": ["infilling_by_word"],
}
"""How the sentences are scored; the first method is the main one."""
TRIAL_FLOPS, TRIAL_SEED, RATES = 8e12, 101, (1e-3, 2e-3, 4e-3)
BUDGETS, SEEDS = (2.5e13, 1e14), (1, 2, 3)
PAIRS = 200
"""Pairs per paradigm."""


@dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
        arm: its arm.
        flops: training FLOPs.
        rate: learning rate.
        seed: seed.
    """

    arm: str
    flops: float
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.flops / 1e12:g}-lr{self.rate:g}-seed{self.seed}"


class Study:
    """The runs in a folder.

    Args:
        work: folder of texts and runs.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def folder(self, run: Run) -> Path:
        return self.work / "runs" / run.name

    def summary(self, run: Run) -> dict[str, Any] | None:
        """The record of a finished run."""
        path = self.folder(run) / "summary.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    def trials(self, arm: str) -> list[Run]:
        """Three rates, and one more if the best is the smallest or the largest."""
        runs = [Run(arm, TRIAL_FLOPS, rate, TRIAL_SEED) for rate in RATES]
        losses = [self._loss(run) for run in runs]
        if None not in losses and (best := losses.index(min(losses))) != 1:  # type: ignore[type-var]
            runs.append(Run(arm, TRIAL_FLOPS, RATES[0] / 2 if best == 0 else 2 * RATES[-1], TRIAL_SEED))
        return runs

    def _loss(self, run: Run) -> float | None:
        found = self.summary(run)
        return None if found is None else float(found["metrics"]["val/loss"])

    def rate(self, arm: str) -> float | None:
        """The rate with the lowest loss on held-out text; None: not known yet."""
        losses = {run.rate: self._loss(run) for run in self.trials(arm)}
        return None if None in losses.values() else min(losses, key=lambda rate: losses[rate] or 0.0)

    def runs(self) -> list[Run]:
        """The runs that are known by now, trials first, then small budgets."""
        trials = [run for arm in ARMS for run in self.trials(arm)]
        rates = {arm: self.rate(arm) for arm in ARMS}
        return trials + [
            Run(arm, flops, rate, seed)
            for flops in BUDGETS
            for seed in SEEDS
            for arm, rate in rates.items()
            if rate is not None
        ]

    def jobs(self) -> Iterator[tuple[str, list[str]]]:
        """The name and arguments of each job that is not finished."""
        for run in self.runs():
            folder = self.folder(run)
            if self.summary(run) is None:
                settings = f"{COMMON.format(data=self.work / 'text')} {ARMS[run.arm]}"
                own = f"reference={run.flops} optimizer.lr={run.rate} seed={run.seed} run_dir={folder}"
                yield f"train {run.name}", ["train", *shlex.split(f"{settings} {own}")]
                continue
            for method in METHODS[run.arm] if run.seed in SEEDS else ():
                if not self.scores(run, method).exists():
                    settings = f"checkpoint={folder} data=minimal_pairs data.dir={self.work} method={method}"
                    own = [*settings.split(), f"data.pairs_per_paradigm={PAIRS}", "trainer.accelerator=cpu"]
                    yield f"score {run.name} {method}", ["evaluate", *own]

    def scores(self, run: Run, method: str) -> Path:
        return self.folder(run) / "minimal_pairs" / f"blimp.{method}.tsv"


def write_texts(imdb: Path, folder: Path) -> None:
    """Writes a sentence per line; whole reviews are held out."""
    if (folder / "train.txt").exists():
        return
    with gzip.open(imdb / "train.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        reviews = [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    random.Random(0).shuffle(reviews)
    left = iter(reviews)
    folder.mkdir(parents=True, exist_ok=True)
    for name, share in (("test", HELD_OUT), ("validation", HELD_OUT), ("train", 1 - 2 * HELD_OUT)):
        lines, count = list[str](), 0
        while count < share * WORDS:
            text = " ".join(re.sub(r"<br ?/?>", " ", next(left)).split())
            sentences = [line for line in SENTENCE_END.split(text) if 2 <= len(line.split()) <= LONGEST]
            lines += sentences
            count += sum(len(line.split()) for line in sentences)
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines):,} sentences, {count:,} words")


def work_through(study: Study, num_jobs: int, minutes: float) -> None:
    """Starts jobs, a few at a time, until the time is over; then stops those that still run."""
    end, running, failed = time.monotonic() + 60 * minutes, dict[str, subprocess.Popen[bytes]](), set[str]()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    logs = study.work / "logs"
    logs.mkdir(exist_ok=True)
    while time.monotonic() < end:
        for name, process in [*running.items()]:
            if process.poll() is not None:
                print(f"{time.strftime('%H:%M:%S')} {name}: {process.returncode}", flush=True)
                del running[name]
                failed |= {name} if process.returncode else set()
        waiting = [job for job in study.jobs() if job[0] not in running and job[0] not in failed]
        if not waiting and not running:
            break
        for name, arguments in waiting[: num_jobs - len(running)]:
            with (logs / f"{name.replace(' ', '_')}.log").open("ab") as log:
                command = [sys.executable, "-m", "triptych", *arguments]
                running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=study.work)
        time.sleep(2)
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    for process in running.values():
        process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("imdb", "blimp", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="write grammar.md and grammar.json")
    given = parser.parse_args(arguments)
    work = given.work.resolve()
    write_texts(given.imdb, work / "text")
    if not (work / "blimp.jsonl").exists():
        found = next(given.blimp.glob("blimp.jsonl*"))
        content = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
        (work / "blimp.jsonl").write_bytes(content)
    study = Study(work)
    if given.report:
        write_report(study)
    else:
        work_through(study, given.jobs, given.minutes)


if __name__ == "__main__":
    main()
