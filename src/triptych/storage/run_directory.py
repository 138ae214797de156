"""The files of a run: what they are called, and how far they say that it is."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from triptych.config import ConfigError, nearest

RECORD, PRUNED = "summary.json", "pruned.json"
LAST, BEST = "last.ckpt", "best.ckpt"
STARTED = ("metrics.csv", "train.log", "slurm.json", "terminal.log", "job.json")
"""The files of which a run has one before its record."""
SIGNS = (*STARTED, RECORD, PRUNED, ".lock")
"""The files of which a run directory has one."""


class RunDirectory:
    """The names in the directory of a run; docs/run_directory.md says what each file holds.
    (``conf`` names the metrics, the log and the folder of the checkpoints too: they can be set.)

    Args:
        path: of the directory, whether it exists or not.
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
        self.predictions = path / "answers.jsonl"
        self.attention = path / "attention.json"
        self.log = path / "train.log"
        self.job, self.slurm_task = path / "job.json", path / "slurm.json"
        self.job_log = path / "terminal.log"
        self.lock, self.lock_holder = path / ".lock", path / ".lock.holder"

    def rank_log(self, rank: int) -> Path:
        """What a process other than the first prints."""
        return self.path / f"rank-{rank}.log"

    @property
    def has_begun(self) -> bool:
        """Whether a run has written a checkpoint of its own. The best one of the run that it goes on from stands there
        before, put there by the first of its processes, while the others may still be looking."""
        return any(file.name != BEST for file in self.checkpoints.glob("*.ckpt"))

    def is_done(self, *, is_trial: bool) -> bool:
        """Whether a run has nothing left to do: it was tested; a trial, which never tests, was validated or pruned.

        Args:
            is_trial: whether it is run as a trial of a search.
        """
        if is_trial:
            return self.record.exists() or self.pruned.exists()
        try:
            return is_tested(json.loads(self.record.read_text(encoding="utf-8"))["metrics"])
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (ValueError, LookupError, TypeError):  # damaged, as who reads it will say
            return True


def is_tested(metrics: Mapping[str, object]) -> bool:
    """Whether the metrics of a finished run are those of a test too; a trial of a search has those of validation alone.

    Args:
        metrics: by name, as summary.json has them.
    """
    return any(name.startswith("test/") for name in metrics)


def find_directories(folder: Path, *names: str) -> set[Path]:
    """The directories at or below a folder that have a file of one of these names."""
    return {file.parent for name in names for file in folder.rglob(name)}


def find_checkpoint(path: str | Path, key: str = "checkpoint") -> Path:
    """The checkpoint itself, or the last one of a run directory. Whether it is damaged is another matter.

    Args:
        key: where it stands.
    """
    if "://" in str(path):
        raise ConfigError(f"{key}={path}: expected a file or a run directory; download it first")
    path = Path(path)
    if (path / "config.json").is_file():
        command = f"triptych import {shlex.quote(str(path))} --output CHECKPOINT"
        raise ConfigError(f"{key}={path} is a Hugging Face folder: {command} first")
    if path.suffix == ".safetensors":
        raise ConfigError(f"{key}={path} holds weights alone; expected a checkpoint or a run directory")
    if path.is_dir():
        runs = sorted(str(file) for file in path.iterdir() if RunDirectory(file).last.exists())
        path = RunDirectory(path).last
        if runs and not path.is_file():
            raise ConfigError(f"{key}={path.parents[1]}: holds {len(runs)} runs; choose one: {', '.join(runs)}")
    if not path.is_file():
        siblings = sorted(str(p) for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        like = nearest(str(path), siblings)
        raise ConfigError(f"{key}={path}: no such file{like or '; expected a run directory or a checkpoint'}")
    return path
