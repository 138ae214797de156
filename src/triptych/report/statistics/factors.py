"""The factors of a comparison: the settings that differ between its runs, and which of them is compared."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.config import suggestion
from triptych.report.labels import setting
from triptych.report.read_records import PrunedRun, RecordedRun

MODEL = "model"
"""The factor of the architecture."""
TUNED = ("optimizer.", "scheduler.", "block.dropout")
"""Beginnings of the keys that are tuned, not compared, unless nothing else differs."""


@dataclass(frozen=True, slots=True)
class Factor:
    """What differs between runs.

    Attributes:
        key: as on the command line, such as ``block/attention``.
        levels: its values, in the order of the runs.
    """

    key: str
    levels: tuple[str, ...]


def level_of(run: RecordedRun | PrunedRun, by: Sequence[str]) -> str:
    """The level of a run: its architecture, or its values of the compared settings, such as ``attention=performer``."""
    if [*by] == [MODEL]:
        return run.architecture
    values = [run.architecture if key == MODEL else setting(run.settings.get(_setting(key), "absent")) for key in by]
    return ", ".join(f"{_setting(key).rpartition('.')[2]}={value}" for key, value in zip(by, values, strict=True))


def find_factors(runs: Sequence[RecordedRun]) -> list[Factor]:
    """The factors of some runs. Settings that split the runs alike are one factor, named by the command line. Settings
    that are constant within each level of a factor, and on no command line, follow from it."""
    typed = {_setting(key): key for run in runs for key in _typed(run)}
    columns: dict[tuple[int, ...], list[str]] = {}
    values = {MODEL: [run.architecture for run in runs]}
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        if key in typed or not key.startswith("model."):
            values[key] = [setting(run.settings.get(key, "absent")) for run in runs]
    for key, found in values.items():
        if len({*found}) > 1:
            columns.setdefault(tuple(map(found.index, found)), []).append(key)
    factors = []
    for split, keys in columns.items():
        named = next((key for key in keys if key == MODEL or key in typed), None)
        if named is not None or not any(_follows(split, other) for other in columns if other != split):
            key = named or keys[0]
            factors.append(Factor(typed.get(key, key), tuple(dict.fromkeys(values[key]))))
    return factors


def choose_factor(runs: Sequence[RecordedRun], tuned: Sequence[str] = ()) -> str:
    """The key of the compared factor: ``model`` if the architectures differ, otherwise the only factor that is not
    tuned, or the only one. ``model`` if there is none, or several."""
    factors = [factor.key for factor in find_factors(runs)]
    compared = [key for key in factors if key not in tuned and not _setting(key).startswith(TUNED)] or factors
    return compared[0] if len(compared) == 1 and MODEL not in factors else MODEL


def check_factors(runs: Sequence[RecordedRun], by: Sequence[str]) -> None:
    """Checks the keys of ``--by``.

    Raises:
        ValueError: no run has such a setting, or it is the same in all runs.
    """
    for key in by:
        if len({level_of(run, [key]) for run in runs}) == 1:
            known = [factor.key for factor in find_factors(runs)]
            has_one = key == MODEL or any(_setting(key) in run.settings for run in runs)
            why = "the same in all runs" if has_one else "no run has such a setting"
            expected = f"; expected one of {', '.join(known)}" if known else ""
            raise ValueError(f"--by {key}: {why}{expected}{suggestion(key, known)}")


def _setting(key: str) -> str:
    """The setting of a key of the command line: that of a config group has a dot."""
    return key.replace("/", ".")


def _typed(run: RecordedRun) -> list[str]:
    return [word.partition("=")[0].lstrip("+~") for word in shlex.split(run.command) if "=" in word]


def _follows(split: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether runs of one level of the other factor are of one level of this one."""
    return len({*zip(other, split, strict=True)}) == len({*other})
