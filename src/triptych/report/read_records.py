"""Reads run directories: the record, and the files next to it."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

from triptych.config import ARCHITECTURES, FREE, chosen, nearest
from triptych.launch.watch import why_failed
from triptych.report.record import RunRecord, fields_of, read_summary
from triptych.storage.run_directory import PRUNED, RECORD, STARTED, RunDirectory, find_directories, is_tested


@dataclass(frozen=True, slots=True)
class Curve:
    """One logged metric against optimizer steps, or against another cost.

    Attributes:
        steps: the steps (or tokens, FLOPs, seconds), ascending.
        values: the logged values, possibly non-finite.
    """

    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun(RunRecord):
    """One finished run: its record, and the other files of its directory.

    Attributes:
        summary: content of ``summary.json`` (non-finite numbers are ``None``, since JSON has none).
        directory: the run directory, relative to the folder of the report.
        curves: the columns of ``metrics.csv``; empty without that file.
        settings: ``config.yaml`` by dotted keys, without the seed and settings that do not affect the weights; empty
            without that file.
        predictions: the rows of ``predictions.jsonl``, one per test example; empty without that file.
        attention: the samples of ``attention.json``; empty without that file.
        variant: of a study, that the run belongs to; empty outside of one.
    """

    summary: Mapping[str, Any]
    directory: str
    curves: Mapping[str, Curve]
    settings: Mapping[str, object]
    predictions: Sequence[Mapping[str, Any]]
    attention: Sequence[Mapping[str, Any]]
    variant: str = ""


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A pruned trial of a search; its fields are those of a run."""

    task: str
    data: str
    architecture: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RunSet:
    """The runs found below some directories.

    Attributes:
        runs: the finished runs, by task, data, architecture, experiment and seed.
        unfinished: directories of runs without ``summary.json``, relative to the report; with the error if one failed
            and recorded it.
        damaged: the damaged file, and the error, of each run that could not be read.
        untested: finished runs without a test, in the same order: trials of a search.
        pruned: pruned trials.
    """

    runs: tuple[RecordedRun, ...]
    unfinished: tuple[str, ...]
    damaged: tuple[str, ...]
    untested: tuple[RecordedRun, ...]
    pruned: tuple[PrunedRun, ...]

    @property
    def num_untested(self) -> int:
        """Number of untested or pruned runs of searches."""
        return len(self.untested) + len(self.pruned)


def read_curves(path: Path) -> dict[str, Curve]:
    """Reads a ``metrics.csv``: each metric's logged values. Blank cells are left out. If a step has two rows (a resumed
    run), the later one counts."""
    points: dict[str, dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, restkey="cells after the last column", restval="")
        if "step" not in (reader.fieldnames or ()):
            raise ValueError(f"{path}: column step is missing, expected the columns epoch, step and the metrics")
        for row in reader:
            for name, cell in row.items():
                if not cell or name == "epoch":
                    continue
                try:
                    number = float(cell)
                    step = int(row["step"])
                except (TypeError, ValueError):
                    where = f"line {reader.line_num}, column {name}"
                    raise ValueError(f"{path}: {where} is {cell!r} at step {row['step']!r}, expected numbers") from None
                if name != "step":
                    points.setdefault(name, {})[step] = number
    ordered = {name: sorted(column.items()) for name, column in points.items()}
    return {name: Curve(tuple(s for s, _ in column), tuple(v for _, v in column)) for name, column in ordered.items()}


def read_settings(path: Path) -> dict[str, object]:
    """Reads a ``config.yaml``: the settings that may distinguish runs, except for the seed.

    Returns:
        values by dotted keys; lists as texts; parts by their choice (block.position: rotary, optimizer: adamw) or
            class.
    """
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, UnicodeError, YAMLError, OmegaConfBaseException) as error:
        said = " ".join(str(error).split())[:80]
        if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
            said = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise ValueError(f"{path}: damaged, expected YAML: {said}") from error
    free = tuple(f"{key}." for key in (*FREE, "seed", "data.dir"))
    leaves = chosen(config) if isinstance(config, dict) else {}
    return {key: str(x) if isinstance(x, list) else x for key, x in leaves.items() if not f"{key}.".startswith(free)}


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a ``predictions.jsonl``."""
    rows = []
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is damaged, expected JSON: {error}") from None
            if not isinstance(row, dict) or type(row.get("index")) is not int:
                raise ValueError(f"{path}: line {number}: expected an object with the whole number index")
            rows.append(row)
    return rows


def read_attention(path: Path) -> list[dict[str, Any]]:
    """Reads the samples of an ``attention.json``."""
    try:
        samples: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["samples"]
        for sample in samples:
            _check_attention(sample)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged, expected samples with input, encoder, decoder and cross: {error}") from None
    return samples


def _check_attention(sample: dict[str, Any]) -> None:
    for kind in ("encoder", "decoder", "cross"):
        if (found := sample[kind]) is not None:
            weights = np.array(found["weights_x1000"])
            if weights.shape[2:] != (len(found["queries"]), len(found["keys"])):
                raise ValueError(f"{kind} has weights of shape {weights.shape}")
            if not 0 <= len(found["written"]) <= len(found["queries"]) <= found["num_tokens"]:
                raise ValueError(f"{kind} has more rows than tokens")
    if not isinstance(sample["input"], str):
        raise ValueError("input is no text")


def read_run(directory: Path, relative_to: Path) -> RecordedRun:
    """Reads one run directory.

    Args:
        directory: the run directory, with ``summary.json`` and usually ``metrics.csv``.
        relative_to: the folder that ``RecordedRun.directory`` is relative to.

    Raises:
        ValueError: a file is invalid.
    """
    run = RunDirectory(directory)
    summary = read_summary(run.record)
    own = fields_of(summary)
    scores = [score.key for score in own["task_info"].comparison_metrics]
    if is_tested(own["metrics"]) and own["metrics"].keys().isdisjoint(scores):
        raise ValueError(f"{run.record}: key metrics has no {scores[0]}, expected in each {own['task']} run")
    return RecordedRun(
        **own,
        summary=summary,
        directory=_relative(directory, relative_to),
        curves=read_curves(run.metrics) if run.metrics.is_file() else {},
        settings=read_settings(run.config) if run.config.is_file() else {},
        predictions=read_predictions(run.predictions) if run.predictions.is_file() else (),
        attention=read_attention(run.attention) if run.attention.is_file() else (),
    )


def read_pruned(directory: Path) -> PrunedRun:
    """Reads a run directory with a ``pruned.json``."""
    path, config = RunDirectory(directory).pruned, RunDirectory(directory).config
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = read_settings(config) if config.is_file() else {}
        return PrunedRun(content["task"], content["data"], content["architecture"], settings)
    except (json.JSONDecodeError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: damaged, expected JSON with task, data and architecture: {error}") from None


def find_runs(directories: Sequence[Path], relative_to: Path) -> RunSet:
    """Reads all runs at or below the directories.

    Args:
        directories: run directories, or parents of them at any depth.
        relative_to: the folder that the directories in the result are relative to.

    Raises:
        ValueError: no run at or below one of the directories, or no finished run that can be read.
    """
    finished, started, pruned = set[Path](), set[Path](), set[Path]()
    for directory in directories:
        if not directory.is_dir():
            like = nearest(directory.name, [path.name for path in directory.parent.glob("*/")])
            raise ValueError(f"{directory}: no such directory{like or ', expected a run directory or one above it'}")
        found = {path.resolve() for path in find_directories(directory, RECORD)}
        logged = {path.resolve() for path in find_directories(directory, *STARTED)}
        if not found | logged:
            raise ValueError(f"{directory}: no run found, expected a directory with {RECORD} at or below it")
        finished |= found
        started |= logged
        pruned |= {path.resolve() for path in find_directories(directory, PRUNED)} - found
    unfinished = {path for path in started if (finished | pruned).isdisjoint((path, *path.parents))}
    if not finished:
        names = ", ".join(map(str, directories))
        raise ValueError(f"{names}: no finished run found, expected {RECORD} ({len(unfinished)} unfinished)")
    readable: list[RecordedRun] = []
    damaged: list[str] = []
    for path in sorted(finished):
        try:
            readable.append(read_run(path, relative_to))
        except ValueError as error:  # the others can still be compared
            damaged.append(str(error).replace(str(path), _relative(path, relative_to)))
    if not readable:
        raise ValueError(damaged[0])
    runs = sorted(readable, key=_rank)
    return RunSet(
        tuple(run for run in runs if is_tested(run.metrics)),
        tuple(sorted(_unfinished(path, relative_to) for path in unfinished)),
        tuple(damaged),
        tuple(run for run in runs if not is_tested(run.metrics)),
        tuple(read_pruned(path) for path in sorted(pruned)),
    )


def _rank(run: RecordedRun) -> tuple[str, str, int, str, int, str]:
    """The order of runs in all tables and charts."""
    architecture = ARCHITECTURES.index(run.architecture)
    return run.task_info.title, run.data, architecture, run.experiment, run.seed, run.directory


def _unfinished(path: Path, relative_to: Path) -> str:
    reason = why_failed(path)
    return _relative(path, relative_to) + (f" ({reason})" if reason else "")


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()
