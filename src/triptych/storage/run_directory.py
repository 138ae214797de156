"""The file names in a run directory, and the state of a run."""

import csv
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from triptych.config import ConfigError, nearest

FORMAT = 1
"""Of checkpoints and of ``summary.json``."""
RECORD, PRUNED = "summary.json", "pruned.json"
LAST, BEST = "last.ckpt", "best.ckpt"
STARTED = ("metrics.csv", "train.log", "slurm.json", "terminal.log", "job.json")
"""Files of an unfinished run, at least one of which exists."""
SIGNS = (*STARTED, RECORD, PRUNED, ".lock")
"""Files of a run directory, at least one of which exists."""


def check_format(content: Mapping[str, object], path: Path | str) -> None:
    """Raises a ValueError if a checkpoint or a ``summary.json`` has another format."""
    if (found := content.get("format")) == FORMAT:
        return
    if found is None:
        raise ValueError(f"{path}: written by Triptych 0.2 or earlier, whose names differ. Train it again, or use 0.2.")
    raise ValueError(f"{path}: format {found!r}, expected {FORMAT}. Use the version of Triptych that wrote it.")


class RunDirectory:
    """The paths in a run directory; docs/run_directory.md describes each file. (``conf`` also sets the paths of the
    metrics, the log and the checkpoints.)

    Args:
        path: path of the directory, which may not exist.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path = Path(path)
        self.config = path / "config.yaml"
        self.tokenizer = path / "tokenizer.json"
        self.match = path / "match.json"
        self.metrics = path / "metrics.csv"
        self.checkpoints = path / "checkpoints"
        self.last, self.best = self.checkpoints / LAST, self.checkpoints / BEST
        self.weights = path / "weights.safetensors"
        self.record, self.pruned = path / RECORD, path / PRUNED
        self.predictions = path / "predictions.jsonl"
        self.attention = path / "attention.json"
        self.minimal_pairs = path / "minimal_pairs"
        self.log = path / "train.log"
        self.job, self.slurm_task = path / "job.json", path / "slurm.json"
        self.job_log = path / "terminal.log"
        self.lock, self.lock_holder = path / ".lock", path / ".lock.holder"

    def rank_log(self, rank: int) -> Path:
        """The log of a rank other than 0."""
        return self.path / f"rank-{rank}.log"

    @property
    def has_begun(self) -> bool:
        """Whether the run has written a checkpoint. ``best.ckpt`` does not count: rank 0 copies it from the resumed run
        while other ranks may still be checking."""
        return any(file.name != BEST for file in self.checkpoints.glob("*.ckpt"))

    def is_done(self, *, is_trial: bool) -> bool:
        """Whether the run has finished: it was tested, or as a trial of a search, it was validated or pruned."""
        if is_trial:
            return self.record.exists() or self.pruned.exists()
        try:
            return is_tested(json.loads(self.record.read_text(encoding="utf-8"))["metrics"])
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (ValueError, LookupError, TypeError):  # damaged, which its reader reports
            return True


def read_rows(table: Path, tail: int | None = None) -> Iterator[dict[str, str]]:
    """Reads the rows of a ``metrics.csv`` one by one, without truncated or damaged lines; none if the file does not
    exist.

    Args:
        tail: reads only the rows in this number of bytes at the end; None: all.
    """
    if not table.is_file():
        return
    with open(table, "rb") as file:
        heads = file.readline()
        if tail is not None and table.stat().st_size > len(heads) + tail:
            file.seek(-tail, os.SEEK_END)
            file.readline()  # the rest of a row
        lines = (line.decode(errors="replace").replace("\0", "") for line in chain([heads], file))
        for row in csv.DictReader(lines):
            if None not in row and None not in row.values() and row.get("step", "").isdigit():
                yield row


def is_tested(metrics: Mapping[str, object]) -> bool:
    """Whether the metrics in summary.json include test metrics; those of a trial of a search do not."""
    return any(name.startswith("test/") for name in metrics)


def find_directories(folder: Path, *names: str) -> set[Path]:
    """The directories in a folder, including itself, that contain a file with one of these names."""
    return {file.parent for name in names for file in folder.rglob(name)}


def find_checkpoint(path: str | Path, key: str = "checkpoint") -> Path:
    """The path of a checkpoint, or of the latest one in a run directory; it may be damaged.

    Args:
        key: key of the path in the configuration.
    """
    if "://" in str(path):
        raise ConfigError(f"{key}={path}: expected a file or a run directory. Download it first")
    path = Path(path)
    if (path / "config.json").is_file():
        command = f"triptych import {shlex.quote(str(path))} --output CHECKPOINT"
        raise ConfigError(f"{key}={path} is a Hugging Face folder. Run {command} first")
    if path.suffix == ".safetensors":
        raise ConfigError(f"{key}={path} only contains weights; expected a checkpoint or a run directory")
    if path.is_dir():
        runs = sorted(str(file) for file in path.iterdir() if RunDirectory(file).last.exists())
        path = RunDirectory(path).last
        if runs and not path.is_file():
            raise ConfigError(f"{key}={path.parents[1]}: contains {len(runs)} runs; expected one of {', '.join(runs)}")
    if not path.is_file():
        siblings = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        like = nearest(str(path), siblings)
        raise ConfigError(f"{key}={path}: no such file{like or '; expected a run directory or a checkpoint'}")
    return path
