"""The factors of a comparison: the settings that differ between its runs, with their roles."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.config import ARCHITECTURES, nearest
from triptych.report.labels import setting
from triptych.report.read_records import PrunedRun, RecordedRun

MODEL = "model"
"""The factor of the architecture."""
TUNED_KEYS = ("optimizer.", "scheduler.", "block.dropout")
"""Beginnings of the keys that are tuned, not compared, unless nothing else differs."""
COMPARED, TUNED, BLOCK, FOLLOWS, DIFFERS = "compared", "tuned", "block", "follows", "differs"
OF_THE_TEST = ("trainer.limit_test_batches", "task.num_beams", "task.length_penalty")
"""Settings that change the score of the same weights: never compared."""
_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Factor:
    """What differs between runs.

    Attributes:
        key: as on the command line, such as ``block/attention``.
        levels: its values: architectures in their order, numbers ascending, others by name.
        role: ``compared``; ``tuned``: the best value on the validation set counts; ``block``: compared within each of
            its levels; ``follows`` from other factors; ``differs``: with the compared one. Empty: none yet.
    """

    key: str
    levels: tuple[str, ...]
    role: str = ""


def level_of(run: RecordedRun | PrunedRun, by: Sequence[str]) -> str:
    """The level of a run: its architecture, or its values of the compared settings, such as ``attention=performer``."""
    if [*by] == [MODEL]:
        return run.architecture
    return ", ".join(f"{setting_of(key).rpartition('.')[2]}={value_of(run, key)}" for key in by)


def value_of(run: RecordedRun | PrunedRun, key: str) -> str:
    """The value of a factor, as typed on the command line; a part without a recorded choice is given by its class. In a
    study, each seed may start from another run of the same variant, so that variant is the value."""
    if key == MODEL:
        return run.architecture
    name = setting_of(key)
    if isinstance(run, RecordedRun) and run.variant and (source := run.settings.get(key)) and key == "init_from":
        return Path(str(source)).parent.name
    target = str(run.settings.get(f"{name}._target_", _ABSENT))
    return setting(run.settings.get(name, target.rpartition(".")[2] if target.startswith("triptych.") else target))


def find_factors(runs: Sequence[RecordedRun]) -> list[Factor]:
    """The factors of some runs. Settings that split the runs alike are one factor, named by one that all runs have, if
    possible by the command line. Settings that are constant within each level of a factor, and on no command line,
    follow from it."""
    typed = {setting_of(key): key for run in runs for key in _typed(run)}
    columns: dict[tuple[int, ...], dict[str, list[str]]] = {}
    names = dict.fromkeys(
        key.removesuffix("._target_") for run in runs for key in run.settings if key not in OF_THE_TEST
    )
    for key in (MODEL, *(key for key in names if key in typed or not key.startswith("model."))):
        values = [value_of(run, key) for run in runs]
        if len({*values}) > 1:
            columns.setdefault(_split(values), {})[key] = values
    factors = []
    for split, found in columns.items():
        key = min(
            found, key=lambda key: (_ABSENT in found[key], key not in typed or setting_of(key).startswith(TUNED_KEYS))
        )
        if {MODEL, *typed} & {*found} or not any(_follows(split, other) for other in columns if other != split):
            key = MODEL if MODEL in found else typed.get(key, key)
            factors.append(Factor(key, _sort_levels(runs, key)))
    return factors


def choose_factor(runs: Sequence[RecordedRun], tuned: Sequence[str] = ()) -> str:
    """The key of the compared factor: ``model`` if the architectures differ, otherwise the only factor that is not
    tuned, or the only one. ``model`` if there is none, or several."""
    factors = [factor.key for factor in find_factors(runs)]
    compared = [key for key in factors if not _is_tuned(key, tuned)] or factors
    return compared[0] if len(compared) == 1 and MODEL not in factors else MODEL


def find_roles(runs: Sequence[RecordedRun], by: Sequence[str], tuned: Sequence[str] = ()) -> tuple[Factor, ...]:
    """The compared factors, then the others with their roles.

    A factor is a block if it varies within a level of the compared one and is not tuned. One that is on no command line
    is a block only if the others do not determine it.

    Args:
        runs: one per configuration.
        by: keys of the compared factors.
        tuned: keys of settings that are tuned, in addition to ``TUNED_KEYS``.
    """
    cells = _split([level_of(run, by) for run in runs])
    compared = {cells, *(_split([value_of(run, key) for run in runs]) for key in by)}
    typed = {MODEL, *(key for run in runs for key in _typed(run))}
    found = [Factor(key, _sort_levels(runs, key), COMPARED) for key in by]
    for factor in sorted(find_factors(runs), key=lambda one: (one.key not in typed, _is_tuned(one.key, tuned))):
        split = _split([value_of(run, factor.key) for run in runs])
        if split not in compared:
            role = TUNED if _is_tuned(factor.key, tuned) else BLOCK
            if setting_of(factor.key) not in tuned and (len(found[0].levels) == 1 or _follows(split, cells)):
                role = DIFFERS if factor.key in typed else FOLLOWS
            found.append(replace(factor, role=role))
            cells = _split([*zip(cells, split, strict=True)])
    return tuple(found)


def sort_runs(runs: Sequence[RecordedRun], factors: Sequence[Factor]) -> tuple[RecordedRun, ...]:
    """The runs in the order of the compared levels, then of the blocks; otherwise as before."""
    known = [factor for factor in factors if factor.role in (COMPARED, BLOCK)]
    return tuple(sorted(runs, key=lambda run: [x.levels.index(value_of(run, x.key)) for x in known]))


def check_factors(runs: Sequence[RecordedRun], by: Sequence[str], tuned: Sequence[str] = ()) -> None:
    """Checks the keys of ``--by`` and ``--tuned``.

    Raises:
        ValueError: no run has such a setting, a compared one is the same in all runs, or one is given to both.
    """
    known = [factor.key for factor in find_factors(runs)] if by or tuned else []
    expected = f"; expected one of {', '.join(known)}" if known else ""
    for option, keys in (("--by", by), ("--tuned", tuned)):
        for key in keys:
            values = {value_of(run, key) for run in runs}
            why = "no run has such a setting" if values == {_ABSENT} else ""
            if option == "--by" and len(values) == 1 and not why:
                why = "the same in all runs"
            if option == "--tuned" and key in by:
                why = "also given to --by"
            if why:
                raise ValueError(f"{option} {key}: {why}{expected}{'' if key in known else nearest(key, known)}")


def setting_of(key: str) -> str:
    """The setting of a key of the command line: that of a config group has a dot, after the @ if it has one."""
    return key.replace("/", ".").rpartition("@")[2]


def _is_tuned(key: str, tuned: Sequence[str]) -> bool:
    return setting_of(key) in [*map(setting_of, tuned)] or setting_of(key).startswith(TUNED_KEYS)


def _typed(run: RecordedRun) -> list[str]:
    return [word.partition("=")[0].lstrip("+~") for word in shlex.split(run.command) if "=" in word]


def _sort_levels(runs: Sequence[RecordedRun], key: str) -> tuple[str, ...]:
    def rank(run: RecordedRun) -> tuple[float, str]:
        value, name = run.settings.get(setting_of(key)), value_of(run, key)
        number = value if isinstance(value, int | float) else math.inf
        return ARCHITECTURES.index(name) if key == MODEL else number, name

    return tuple(dict.fromkeys(value_of(run, key) for run in sorted(runs, key=rank)))


def _split(values: Sequence[object]) -> tuple[int, ...]:
    """Which runs have the same value: the position of its first one."""
    return tuple(map(values.index, values))


def _follows(split: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether runs of one level of the other factor are of one level of this one."""
    return len({*zip(other, split, strict=True)}) == len({*other})
