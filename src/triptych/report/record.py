"""The record of a run, ``summary.json``: a dataclass with validation."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from triptych.config import ARCHITECTURES, ConfigError, check_type, describe_type
from triptych.data.images import PNG_ADDRESS
from triptych.data.overlap import Overlap
from triptych.storage.run_directory import FORMAT, check_format
from triptych.tasks.metric_specs import TaskInfo

PICTURES = ("image", "output_image", "reference_image")
"""Keys of a sample that may hold a picture."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """The keys of ``summary.json``, in its order, as documented in docs/run_directory.md. Records of earlier versions
    may lack the keys that have a default.

    Attributes:
        metrics: NaN for non-finite values.
    """

    format: int = FORMAT
    experiment: str
    architecture: str
    task: str
    data: str
    seed: int
    params: int
    non_embedding_params: int
    active_params: int | None = None
    params_by_part: dict[str, int] | None = None
    num_layers: dict[str, int]
    init_from: str | None = None
    match: dict[str, Any] | None = None
    train_flops: float
    train_flops_by_part: dict[str, int] | None = None
    train_flops_of: tuple[str, ...] = ("forward", "backward")
    decoding: dict[str, int] | None = None
    train_tokens: int
    non_padding_fraction: float | None = None
    tokens_per_step: float
    steps: int
    skipped_steps: int | None = None
    best_step: int | None = None
    best_value: float | None = None
    began: str | None = None
    ended: str | None = None
    wall_time_s: float
    tokens_per_second: float
    peak_memory_bytes: int | None = None
    metrics: dict[str, float]
    optimum: dict[str, float]
    floor: dict[str, float] | None = None
    task_info: TaskInfo
    signatures: dict[str, str] | None = None
    confusion_matrix: dict[str, Any] | None = None
    too_long: dict[str, str | int]
    packed: bool | None = None
    eval_windows: dict[str, int] | None = None
    train_difficulty_range: dict[str, list[int]] | None = None
    tested_weights: Literal["last", "best"]
    samples: list[dict[str, str]]
    prediction_latency_s: float | None = None
    weights_sha256: str
    overlap: Overlap | None = None
    data_sha256: str
    tokenizer_sha256: str
    git_commit: str | None
    versions: dict[str, str]
    hardware: str
    precision: str
    command: str


def read_summary(path: Path) -> dict[str, Any]:
    """Reads and checks a ``summary.json``, with any additional keys; NaN and infinities become ``None``."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except ValueError as error:
        raise ValueError(f"{path}: damaged, expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(content).__name__}")
    check_format(content, path)
    hints = get_type_hints(RunRecord)
    for field in fields(RunRecord):
        key, expected = field.name, _EXPECTED.get(field.name, describe_type(hints[field.name]))
        if key not in content:
            if field.default is MISSING:
                raise ValueError(f"{path}: key {key} is missing, expected {expected}")
        elif not _is_valid(key, content[key], hints[key]):
            raise ValueError(f"{path}: key {key} is {json.dumps(content[key])[:60]}, expected {expected}")
    return content


def fields_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``RunRecord``, from the result of ``read_summary``."""
    found = {field.name: content[field.name] for field in fields(RunRecord) if field.name in content}
    found["metrics"] = {key: math.nan if value is None else value for key, value in content["metrics"].items()}
    found["task_info"] = TaskInfo.from_dict(content["task_info"])
    if "train_flops_of" in content:
        found["train_flops_of"] = tuple(content["train_flops_of"])
    return found


_EXPECTED = {
    "architecture": f"one of {', '.join(ARCHITECTURES)}",
    "task_info": "the metadata of a task",
    "metrics": "an object of numbers",
    "samples": "a list of objects with the texts input, output and reference",
}
"""The expected content of a key whose type does not describe it."""


def _is_valid(key: str, value: Any, hint: Any) -> bool:
    if key == "task_info":
        return _is_task_facts(value)
    try:
        check_type(key, value, dict[str, float | None] if key == "metrics" else hint)
    except ConfigError:
        return False
    if key == "samples":
        return all({"input", "output", "reference"} <= sample.keys() and _has_pictures(sample) for sample in value)
    return key != "architecture" or value in ARCHITECTURES


def _is_task_facts(value: Any) -> bool:
    try:
        return bool(TaskInfo.from_dict(value).comparison_metrics)
    except (TypeError, KeyError):
        return False


def _has_pictures(sample: Mapping[str, str]) -> bool:
    return all(sample[key].startswith(PNG_ADDRESS) for key in PICTURES if key in sample)
