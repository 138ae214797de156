"""Reads run directories: the record, and the files next to it."""

import csv
import hashlib
import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from pyarrow import csv as arrow_csv

from triptych.config import ARCHITECTURES, FREE, chosen, nearest
from triptych.launch.watch import why_failed
from triptych.report.record import RunRecord, fields_of, read_summary
from triptych.storage.run_directory import PRUNED, RECORD, STARTED, RunDirectory, find_directories, is_tested

MOST_POINTS = 500
"""About as many steps are kept of a long training."""
WHOLE = ("val/", "test/")
"""Prefixes of columns whose steps are all kept."""
Points = tuple[Int[np.ndarray, " points"], Float[np.ndarray, " points"]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One logged metric against optimizer steps, or against another cost.

    Attributes:
        steps: the steps (or tokens, FLOPs, seconds), ascending.
        values: the logged values, possibly non-finite.
    """

    steps: Sequence[float]
    values: Sequence[float]


class RecordedPredictions(Sequence[Mapping[str, Any]]):
    """The rows of a ``predictions.jsonl``, one per test example. The file is checked at once, and read again when rows
    are used, since most runs of a comparison do not show theirs.

    Attributes:
        asked: a digest of the inputs and references; runs with the same one predicted the same examples.

    Args:
        path: the file; None: no predictions.
    """

    def __init__(self, path: Path | None = None) -> None:
        rows = read_predictions(path) if path else []
        keys = ("index", "input", "reference", "continuation_bytes")
        self._path, self._count = path, len(rows)
        self.asked = hashlib.sha256(json.dumps([[row.get(key) for key in keys] for row in rows]).encode()).digest()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return _keep_predictions(self._path)[index] if self._path else ()[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(_keep_predictions(self._path) if self._path else ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun(RunRecord):
    """One finished run: its record, and the other files of its directory.

    Attributes:
        summary: content of ``summary.json`` (non-finite numbers are ``None``, since JSON has none).
        directory: the run directory, relative to the folder of the report.
        curves: the columns of ``metrics.csv``, thinned (``read_curves``); empty without that file.
        settings: ``config.yaml`` by dotted keys, without the seed and settings that do not affect the weights; empty
            without that file.
        predictions: of the test examples; empty without that file.
        attention: the samples of ``attention.json``; empty without that file.
        variant: of a study, that the run belongs to; empty outside of one.
    """

    summary: Mapping[str, Any]
    directory: str
    curves: Mapping[str, Curve]
    settings: Mapping[str, object]
    predictions: RecordedPredictions
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
    run), the later one counts. Of a long training, the steps of validations are kept, and about ``MOST_POINTS`` others:
    those of the smallest and the largest training loss of each stretch."""
    with path.open(encoding="utf-8", newline="") as file:
        heads = next(csv.reader(file), [])
    if "step" not in heads:
        raise ValueError(f"{path}: column step is missing, expected the columns epoch, step and the metrics")
    names = [name for name in heads if name not in ("epoch", "step")]
    types = {**dict.fromkeys(names, pa.float64()), "step": pa.int64()}
    convert = arrow_csv.ConvertOptions(column_types=types, include_columns=[*types], null_values=[""])
    try:  # in one thread, errors have a line
        options = arrow_csv.ReadOptions(use_threads=False)
        table = arrow_csv.read_csv(path, read_options=options, convert_options=convert)
    except pa.ArrowInvalid as error:
        found = re.search(r"(?:column #(\d+): )?Row #(\d+): (.*)", str(error))
        column, line, said = found.groups() if found else (None, "1", str(error))
        where = f"line {line}" if column is None else f"line {line}, column {heads[int(column)]}"
        raise ValueError(f"{path}: {where}: {said}; expected numbers") from None
    if table["step"].null_count:
        raise ValueError(f"{path}: column step has blank cells, expected numbers")
    logged = {name: _last_of_each_step(table["step"], table[name]) for name in names}
    whole = [steps for name, (steps, _) in logged.items() if name.startswith(WHOLE)]
    others = [points for name, points in logged.items() if not name.startswith(WHOLE)]
    drawn = logged.get("train/loss") or max(others, key=lambda points: len(points[0]), default=None)
    kept = np.concatenate([*whole, *([_thin(*drawn)] if drawn else [])])
    curves = {}
    for name, (steps, values) in logged.items():
        known = slice(None) if name.startswith(WHOLE) else np.isin(steps, kept)
        curves[name] = Curve(array("q", steps[known].tobytes()), array("d", values[known].tobytes()))
    return curves


def _last_of_each_step(steps: pa.ChunkedArray, values: pa.ChunkedArray) -> Points:
    """The steps and values of a column, in the order of the steps."""
    known = values.is_valid()
    step, value = steps.filter(known).to_numpy(), values.filter(known).to_numpy()
    order = np.argsort(step, kind="stable")
    step, value = step[order], value[order]
    is_last = np.append(step[1:] != step[:-1], True)[: len(step)]
    return step[is_last], value[is_last]


def _thin(steps: Int[np.ndarray, " points"], values: Float[np.ndarray, " points"]) -> Int[np.ndarray, " kept"]:
    """The steps of the smallest, the largest and the last value of each stretch of a long curve; NaN is the largest."""
    if len(steps) <= MOST_POINTS:
        return steps
    ends = np.linspace(0, len(steps), MOST_POINTS // 3 + 1).astype(int)
    stretch = np.searchsorted(ends, np.arange(len(steps)), side="right")
    order = np.lexsort((values, stretch))
    kept: Int[np.ndarray, " kept"] = steps[np.concatenate([order[ends[:-1]], order[ends[1:] - 1], ends[1:] - 1])]
    return kept


def read_settings(path: Path) -> dict[str, object]:
    """Reads a ``config.yaml``: the settings that may distinguish runs, except for the seed.

    Returns:
        values by dotted keys; lists as texts; parts by their choice (block.position: rotary, optimizer: adamw) or
            class.
    """
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:80]
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            said = f"line {error.problem_mark.line + 1}: {error.problem}"
        raise ValueError(f"{path}: damaged, expected YAML: {said}") from error
    free = tuple(f"{key}." for key in (*FREE, "seed", "data.dir"))
    if not isinstance(config, dict):
        raise ValueError(f"{path}: damaged, expected keys with values")
    leaves = chosen(config)
    return {key: str(x) if isinstance(x, list) else x for key, x in leaves.items() if not f"{key}.".startswith(free)}


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a ``predictions.jsonl``."""
    try:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: damaged, expected UTF-8 (byte {error.start}: {error.reason})") from None
    lines = text.split("\n") if text else []
    with suppress(ValueError):  # all lines at once take half of the time
        rows: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")
        if len(rows) == len(lines) and all(isinstance(row, dict) and type(row.get("index")) is int for row in rows):
            return rows
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is damaged, expected JSON: {error}") from None
        if not isinstance(row, dict) or type(row.get("index")) is not int:
            raise ValueError(f"{path}: line {number}: expected an object with the whole number index")
    return []


@lru_cache(maxsize=8)
def _keep_predictions(path: Path) -> list[dict[str, Any]]:
    return read_predictions(path)


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
        predictions=RecordedPredictions(run.predictions if run.predictions.is_file() else None),
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
