"""The audit: differences between the runs of a group, other than the compared factor."""

from dataclasses import dataclass
from typing import Any

from triptych.report.page.style import ARCHITECTURES
from triptych.report.statistics.groups import Group

TOLERANCE = 0.02
"""Params, FLOPs and tokens per step that differ by less than this share count as equal in the audit."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the runs of a group, other than the architecture."""

    task: str
    field: str
    values: dict[str, Any]
    text: str


_AUDITED = {
    "data_sha256": "The data differ: scores are for different examples.",
    "tokenizer_sha256": "The tokenizers differ: scores per token and token counts cannot be compared.",
    "too_long": "The number of too long examples, or their handling, differs.",
    "tokens_per_step": "The tokens per step differ.",
    "steps": "The numbers of steps differ.",
    "params": "The numbers of parameters differ.",
    "train_flops": "The training compute differs.",
    "train_flops_of": "Only some runs count the FLOPs of the optimizer: FLOPs cannot be compared.",
    "precision": "The precision differs.",
    "hardware": "The hardware differs: times and speeds cannot be compared.",
    "git_commit": "The code differs.",
    "versions": "The versions of libraries differ.",
    "tested_weights": "Some runs tested their last weights, others their best weights.",
}
_POOLS = {"first": "the first state", "last": "the last state", "mean": "the mean of the states"}
_TOLERANT = ("tokens_per_step", "params", "train_flops")


def audit(group: Group) -> list[Difference]:
    """Lists differences between the runs of a group other than the architecture; with blocks, within each of them.

    Returns:
        one entry per field that differs; params, FLOPs and tokens per step only from 2 % on. Settings
            (``Group.differing_settings``) and the number of configurations tried are those of each architecture's best
            configuration.
    """
    if "" not in group.blocks:  # within each block
        merged: dict[tuple[str, str], Difference] = {}
        for one in (found for block in group.shared_blocks.values() for found in audit(block)):
            merged.setdefault((one.field, one.text), one).values.update(one.values)
        return [*merged.values()]
    found = []
    for field, text in _AUDITED.items():
        if field == "train_flops" and not group.counts_alike:
            continue
        values = {run.directory: getattr(run, field) for run in group.runs}
        distinct = list(values.values())
        if field in _TOLERANT:
            low, high = min(distinct), max(distinct)
            if high - low <= TOLERANCE * low:
                continue
            text = f"{text[:-1]} by up to {100 * (high / low - 1):.0f} %." if low > 0 else text
        elif all(value == distinct[0] for value in distinct):
            continue
        elif field == "versions":
            names = {name for value in distinct for name in value}
            differing = sorted(name for name in names if len({value.get(name) for value in distinct}) > 1)
            text = f"{text[:-1]}: {', '.join(differing)}."
        found.append(Difference(group.task, field, values, text))
    return found + _audit_choice(group)


def _audit_choice(group: Group) -> list[Difference]:
    first = [contender.runs[0] for contender in group.chosen.values()]
    found = []
    known = [run for run in first if run.settings]
    if differing := group.differing_settings(first):
        values = {
            run.directory: ", ".join(f"{key}={run.settings.get(key, 'absent')}" for key in differing) for run in known
        }
        found.append(Difference(group.task, "settings", values, f"The settings differ: {', '.join(differing)}."))
    pooled = [run for run in known if "model.head.pooling" in run.settings]
    pools = {run.directory: str(run.settings["model.head.pooling"]) for run in pooled}
    if len(set(pools.values())) > 1:
        used = [_POOLS.get(pool, pool) for pool in pools.values()]
        names = [ARCHITECTURES[run.architecture].word for run in pooled]
        said = ", ".join(f"{name} uses {states}" for name, states in zip(names, used, strict=True))
        found.append(Difference(group.task, "pooling", pools, f"The pooling differs: {said}."))
    trials = {run.directory: count for run, count in zip(first, group.num_tried.values(), strict=True)}
    if len(set(trials.values())) > 1:
        found.append(Difference(group.task, "trials", trials, "The numbers of tried configurations differ."))
    return found
