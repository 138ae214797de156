"""What a comparison shows, and what makes it doubtful: verdicts over seeds, and the audit."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from triptych.config import counted, duration
from triptych.config.overrides import read_value, write_override
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import PrunedRun, Run
from triptych.report.statistics.bootstrap import scored_by
from triptych.report.statistics.metrics import metric_key, primary_metric, validation_key
from triptych.report.statistics.significance import Welch, pool_deviations, seeds_to_decide
from triptych.tasks.scores import Score

TOLERANCE = 0.02
"""Params, FLOPs and tokens per update that are closer than this share count as equal in the audit."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One configuration of an architecture, by the runs of its seeds.

    Attributes:
        architecture: of the runs.
        runs: the seeds.
        label: the settings that tell it from the other configurations of its architecture; empty if it is the only one.
    """

    architecture: str
    runs: tuple[Run, ...]
    label: str

    @property
    def name(self) -> str:
        """In a sentence: the architecture, and what tells it from the others."""
        return ARCHITECTURES[self.architecture].word + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one task on the same data, in the order of ``ARCHITECTURES``, and the metric that compares them;
    trials of a search, which were not tested or were pruned, stand beside them and count as tried."""

    task: str
    data: str
    metric: Score
    runs: tuple[Run, ...]
    untested: tuple[Run, ...] = ()
    pruned: tuple[PrunedRun, ...] = ()

    def value(self, run: Run) -> float:
        """The run's value of the metric; NaN where it has no finite one."""
        return run.metrics[metric_key(self.metric, run)]

    def optimum(self, run: Run) -> float | None:
        """The best value that was reachable for the run, where it is known."""
        return run.optimum.get(metric_key(self.metric, run))

    @property
    def note(self) -> str:
        """What is to be said beside a verdict; that the same was scored, only where the answers show it."""
        return self.metric.note if not self.metric.counted or len(self._counts) == 1 else ""

    @property
    def scored_differently(self) -> str:
        """Why values of the metric cannot be compared; empty: they can."""
        counts = self._counts - {None}
        if self.metric.counted and len(counts) > 1:
            numbers = " and ".join(f"{count:,.0f}" for count in sorted(count for count in counts if count is not None))
            return f"{numbers} {self.metric.counted} were scored."
        recorded = [run.signatures or {} for run in self.runs]
        signatures = [{*signature.get(self.metric.name, "").split("|")} for signature in recorded]
        differing = set[str]().union(*signatures) - signatures[0].intersection(*signatures) - {""}
        if said := ", ".join(sorted(field for field in differing if not field.startswith("version:"))):
            return f"{self.metric.title} was computed in different ways ({said})."
        return ""

    @property
    def not_comparable(self) -> str:
        """Why the architectures cannot be compared; empty: they can."""
        if reason := self.runs[0].task_facts.not_comparable:
            return reason
        if len({run.data_sha256 for run in self.runs}) > 1:
            return "the runs did not use the same data (data_sha256 differs)."
        return self.scored_differently

    @property
    def _counts(self) -> set[float | None]:
        """How much of the test was scored, by any of the runs; None: not known."""
        return {scored_by(self.metric, run) for run in self.runs}

    def by_architecture(self) -> dict[str, list[Contender]]:
        """The configurations of each architecture that is there."""
        found = {}
        for architecture, members in groupby(self.runs, key=lambda run: run.architecture):
            alike: dict[object, list[Run]] = {}
            for run in members:
                alike.setdefault(_configuration(run), []).append(run)
            runs = list(alike.values())
            labels = _labels([of_one[0] for of_one in runs])
            found[architecture] = [Contender(architecture, tuple(r), x) for r, x in zip(runs, labels, strict=True)]
        return found

    def num_tried(self) -> dict[str, int]:
        """How many configurations of each architecture that is there were tried, tested or not."""
        count = {}
        for name in self.by_architecture():
            runs = [run for run in (*self.runs, *self.untested) if run.architecture == name]
            known = [run.settings for run in runs]  # of a trial with several seeds, another may have been pruned
            others = [run.settings for run in self.pruned if run.architecture == name and run.settings not in known]
            count[name] = len({_configuration(run) for run in runs}) + len({str(settings) for settings in others})
        return count

    @property
    def counts_alike(self) -> bool:
        """Whether the operations of all runs are of the same; else they cannot be compared."""
        return len({run.train_flops_of for run in self.runs}) == 1

    @property
    def contenders(self) -> list[Contender]:
        """All of them."""
        return [contender for found in self.by_architecture().values() for contender in found]

    @property
    def varied(self) -> dict[str, str]:
        """What was varied within an architecture, as a sweep does: short names, and the keys of the settings."""
        first = [[c.runs[0] for c in contenders] for contenders in self.by_architecture().values()]
        return {name: key for runs in first for name, key in _differing(runs).items()}

    def best(self, contenders: Sequence[Contender]) -> Contender:
        """The one that is best on the validation set, by the metric, or by the loss where it was not validated."""
        key = validation_key(self.metric, contenders[0].runs[0])
        higher = self.metric.higher_is_better
        if not all(key in run.metrics for contender in contenders for run in contender.runs):
            key, higher = "val/loss", False

        def quality(contender: Contender) -> float:
            values = [run.metrics.get(key, math.nan) for run in contender.runs]
            mean = fmean(values)
            return (mean if higher else -mean) if math.isfinite(mean) else -math.inf

        return max(contenders, key=quality)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one group: the winner is an architecture, or ``None`` where the runs cannot tell; then commands
    train more seeds, as many as would probably tell the two best apart, if they differ as much as it seems, and the
    price says how many trainings that are, and how long they take."""

    task: str
    data: str
    metric: str
    winner: str | None
    text: str
    commands: tuple[str, ...] = ()
    price: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing, besides the architecture, that differs between the runs of a group."""

    task: str
    field: str
    values: dict[str, Any]
    text: str


def group_runs(runs: Sequence[Run], untested: Sequence[Run] = (), pruned: Sequence[PrunedRun] = ()) -> list[Group]:
    """Put runs of the same task and data together.

    Args:
        runs: the runs, sorted by task, data and architecture, as ``find_runs`` gives them.
        untested: trials of a search.
        pruned: likewise.

    Returns:
        one group for each task and data.
    """
    if untested and not runs:
        raise ValueError(
            f"{untested[0].directory}: a trial of a search validates and does not test; test the chosen one by the "
            "command that the search has printed, and that search.html shows"
        )
    groups = groupby(runs, key=lambda run: (run.task, run.data))
    members = [(task, data, tuple(found)) for (task, data), found in groups]
    return [
        Group(
            task,
            data,
            primary_metric(found),
            found,
            tuple(run for run in untested if (run.task, run.data) == (task, data)),
            tuple(run for run in pruned if (run.task, run.data) == (task, data)),
        )
        for task, data, found in members
    ]


def judge(group: Group) -> Verdict:
    """Name the architecture that is better than each other one, if the seeds show it.

    A winner needs two seeds of each architecture and, against every other architecture, a Welch interval that
    excludes zero. As all of these must hold at once, the chance of a false winner stays at most 5 %.

    Returns:
        the verdict.
    """
    winner, text, chosen = _judge(group)
    if group.note:
        text += f" {group.note}"
    seeds = _wanted_seeds(group, chosen) if winner is None else 0
    commands = tuple(_train_more(contender.runs[0], seeds) for contender in chosen) if seeds else ()
    price = _price(chosen, seeds) if seeds else ""
    return Verdict(group.task, group.data, group.metric.key, winner, text, commands, price)


def _judge(group: Group) -> tuple[str | None, str, Sequence[Contender]]:
    """The winner, the verdict in words, and the configurations that were compared, if there was anything to compare."""
    metric = group.metric
    found = group.by_architecture()
    if len(found) == 1:
        return None, f"Only {_name(group.runs[0])} has been run: nothing to compare it with.", ()
    if group.not_comparable:
        return None, f"Not comparable: {group.not_comparable}", ()
    chosen = {name: group.best(contenders) for name, contenders in found.items()}
    note = _choice(found, chosen, group.num_tried())
    winner, text = _duel(metric, {name: [(run, group.value(run)) for run in c.runs] for name, c in chosen.items()})
    return winner, text + note, [*chosen.values()]


def _wanted_seeds(group: Group, chosen: Sequence[Contender]) -> int:
    """With how many seeds there would probably be a winner; 0: with 100 there would not. (A study has its own.)"""
    values = [[group.value(run) for run in contender.runs] for contender in chosen]
    if not chosen or not all(math.isfinite(value) for found in values for value in found) or chosen[0].runs[0].arm:
        return 0
    tried, seeds = min(map(len, values)), 3
    if tried > 1:
        first, second = sorted(values, key=fmean, reverse=group.metric.higher_is_better)[:2]
        deviation = pool_deviations(first, second)
        needed = seeds_to_decide(abs(fmean(first) - fmean(second)), deviation)
        if needed is None or deviation == 0:
            return 0
        seeds = max(needed, tried + 1)
    return seeds


def _price(chosen: Sequence[Contender], seeds: int) -> str:
    """How many trainings seeds 1 to so many are besides those that there are, and how long they take, by what these
    took."""
    new = [len({*range(1, seeds + 1)} - {run.seed for run in contender.runs}) for contender in chosen]
    seconds = [fmean(run.wall_time_s for run in contender.runs) for contender in chosen]
    whole = sum(count * each for count, each in zip(new, seconds, strict=True))
    return f"{counted(sum(new), 'more training')}, about {duration(whole)} of training one after the other"


def _train_more(run: Run, seeds: int) -> str:
    """The command that trains seeds 1 to so many; those that a sweep has left in its folder are not trained anew."""
    words = shlex.split(run.command)[2:]
    own = [word for word in words if not word.startswith(("seed=", "run_dir="))]
    places = [Path(str(read_value(word))).parent for word in words if word.startswith("run_dir=")]
    folders = [write_override("run_dir", str(place)) for place in places]
    return shlex.join(["triptych", "train", "-m", *own, f"seed=range(1,{seeds + 1})", *folders])


def _choice(found: dict[str, list[Contender]], chosen: dict[str, Contender], num_tried: dict[str, int]) -> str:
    """Which configurations were compared, where there are several of an architecture."""
    said = [
        f"of {len(contenders)} {ARCHITECTURES[name].word} configurations the one with {chosen[name].label}"
        for name, contenders in found.items()
        if len(contenders) > 1
    ]
    trials = " The numbers of trials differ." if len(set(num_tried.values())) > 1 else ""
    return f" Compared, as the best on the validation set: {'; '.join(said)}.{trials}" if said else ""


def _duel(metric: Score, results: dict[str, list[tuple[Run, float]]]) -> tuple[str | None, str]:
    """The verdict on one configuration of each architecture, by the value of each of its runs."""
    values = {name: [value for _, value in found] for name, found in results.items()}
    if diverged := [run.directory for found in results.values() for run, value in found if not math.isfinite(value)]:
        return None, f"No verdict: no finite {metric.title} from {', '.join(diverged)}."
    for found in results.values():
        if len({run.seed for run, _ in found}) < len(found):
            return None, f"No verdict: of the {len(found)} {_name(found[0][0])} runs some have the same seed."
    means = {name: fmean(found) for name, found in values.items()}
    ranking = sorted(means, key=lambda name: means[name], reverse=metric.higher_is_better)
    if min(map(len, values.values())) == 1:
        several = max(map(len, values.values())) > 1
        shown = [
            f"{ARCHITECTURES[name].word} {metric.show(means[name])}" + (f" ({_seeds(values[name])})" if several else "")
            for name in ranking
        ]
        note = "" if several else ", one seed each"
        return None, f"{' vs '.join(shown)}{note}: not distinguishable without more seeds."
    shown = [f"{ARCHITECTURES[name].word} {metric.show(means[name])} ({_seeds(values[name])})" for name in ranking]
    best, *others = ranking
    sign = 1 if metric.higher_is_better else -1
    lead = []
    wins = True
    for other in others:
        low, high = sorted(sign * end for end in Welch.of(values[best], values[other]).interval)
        wins = wins and low > 0
        shown_interval = f"95 % interval {metric.show_difference(low, high)}"
        ahead = metric.show_difference(abs(means[best] - means[other]))
        reason = shown_interval if math.isfinite(low) else "no spread over seeds"
        lead.append(f"{ahead} ahead of {ARCHITECTURES[other].word} ({reason})")
    said = f"{' vs '.join(shown)}; {ARCHITECTURES[best].word} is {', '.join(lead)}"
    if wins:
        return best, f"{said}: {ARCHITECTURES[best].word} is better."
    return None, f"{said}: no winner is distinguishable."


def _configuration(run: Run) -> object:
    """What seeds of one configuration share: its settings. The number of updates is none of these, since early stopping
    ends each seed after another one; and a largest number that was solved (``triptych.planning.matching``) is counted
    on the examples in their order, which is another for each seed. Without settings, the number of updates is all
    there is. A run may belong to an arm of a study, whose runs begin from others of the same seed."""
    solved = ((run.match or {}).get("chosen") or {}).get("trainer.max_steps")
    updates = None if run.settings else run.updates
    own = {key: x for key, x in run.settings.items() if x != solved or not key.endswith("max_steps")}
    if run.arm:
        own.pop("init_from", None)
    return run.arm, run.experiment, run.params, updates, tuple(sorted(own.items()))


def _labels(runs: Sequence[Run]) -> list[str]:
    """What tells runs of different configurations apart: the arms of a study that they are, or the settings that are
    not the same in all of them."""
    if len({run.arm for run in runs}) == len(runs) and runs[0].arm:
        return ["" if run.arm == run.architecture else run.arm.replace("_", " ") for run in runs]
    if len(runs) == 1:
        return [""]
    differing = list(_differing(runs).items())[:MOST_IN_LABELS]
    labels = [", ".join(f"{x}={run.settings[key]}" for x, key in differing if key in run.settings) for run in runs]
    if len(set(labels)) == len(runs):
        return labels
    facts = [f"{run.experiment}, {run.params:,} parameters, {counted(run.updates, 'update')}" for run in runs]
    return [f"{label}, {fact}" if label else fact for label, fact in zip(labels, facts, strict=True)]


def _differing(runs: Sequence[Run]) -> dict[str, str]:
    """The settings that are not the same in all runs, by their short names. What is said twice, such as block.dropout
    and model.encoder.dropout, is one; what another stack alone has is another. A setting that some runs lack belongs to
    a part that others have: it counts where the parts do not tell the runs apart."""
    every = dict.fromkeys(key for run in runs for key in run.settings)
    common = [key for key in every if all(key in run.settings for run in runs)]
    for keys in (common, every):
        differing: dict[str, str] = {}
        columns: dict[tuple[str, ...], str] = {}
        for key in keys:
            values = tuple(str(run.settings.get(key)) for run in runs)
            short = key.rpartition(".")[2]
            if len({*values}) > 1 and (short, *values) not in columns:
                columns[short, *values] = key
                differing[key if short in differing else short] = key
        if len({*zip(*(values[1:] for values in columns), strict=True)}) == len(runs):
            break
    return differing


def _name(run: Run) -> str:
    return ARCHITECTURES[run.architecture].word


def _seeds(values: Sequence[float]) -> str:
    return "1 seed" if len(values) == 1 else f"mean of {len(values)} seeds"


_AUDITED = {
    "data_sha256": "The data differ: scores are not of the same examples.",
    "tokenizer_sha256": "The tokenizers differ: scores per token, and numbers of tokens, cannot be compared.",
    "too_long": "The examples that were too long differ, in number or in what became of them.",
    "tokens_per_update": "The tokens per update differ.",
    "updates": "The numbers of updates differ.",
    "params": "The numbers of parameters differ.",
    "train_flops": "The training compute differs.",
    "train_flops_of": "Some runs count the operations of the optimizer and some do not: they cannot be compared.",
    "precision": "The precision differs.",
    "hardware": "The hardware differs: times and speeds cannot be compared.",
    "git_commit": "The code differs.",
    "versions": "The versions of libraries differ.",
    "tested_weights": "Some runs tested their last weights and some their best ones.",
}
_POOLS = {"first": "the first state", "last": "the last state", "mean": "the mean of the states"}
_TOLERANT = ("tokens_per_update", "params", "train_flops")
MOST_IN_LABELS = 4
_SETTINGS = ("shape.", "block.", "batch.", "task.", "optimizer", "scheduler", "callbacks.", "init_from")
_OF_THE_ARCHITECTURE = ("_target_", "causal", "cross_attention", "max_length")
"""What of a stack follows from the architecture, or from what it reads."""


def audit(group: Group) -> list[Difference]:
    """List what differs between the runs of a group besides the architecture.

    Returns:
        one entry for each field that differs; params, FLOPs and tokens per update only from 2 % on. Settings, and the
        number of configurations that were tried, are those of the configurations that are compared: the best of each
        architecture.
    """
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


def _is_of_one_stack(run: Run, key: str) -> bool:
    """Whether a stack has something in another way than ``block`` and ``shape`` say for all."""
    model, _, own = key.partition(".")
    stack, _, name = own.partition(".")
    if model != "model" or not stack.endswith(("encoder", "decoder")) or name in _OF_THE_ARCHITECTURE:
        return False
    of_all = run.settings.get(f"block.{name}", run.settings.get(f"shape.{name}", "absent"))
    return run.settings[key] != of_all


def _audit_choice(group: Group) -> list[Difference]:
    tried = list(group.by_architecture().values())
    first = [group.best(contenders).runs[0] for contenders in tried]
    found = []
    known = [run for run in first if run.settings]
    keys = dict.fromkeys(
        key for run in known for key in run.settings if key.startswith(_SETTINGS) or _is_of_one_stack(run, key)
    )
    differing = [key for key in keys if len({str(run.settings.get(key, "absent")) for run in known}) > 1]
    if differing:
        values = {
            run.directory: ", ".join(f"{key}={run.settings.get(key, 'absent')}" for key in differing) for run in known
        }
        found.append(Difference(group.task, "settings", values, f"The settings differ: {', '.join(differing)}."))
    pools = {run.directory: str(run.settings["model.head.pool"]) for run in known if "model.head.pool" in run.settings}
    if len(set(pools.values())) > 1:
        said = ", ".join(
            f"{_name(run)} takes {_POOLS.get(pools[run.directory], pools[run.directory])}"
            for run in known
            if run.directory in pools
        )
        found.append(Difference(group.task, "pooling", pools, f"What stands for the whole text differs: {said}."))
    trials = {run.directory: count for run, count in zip(first, group.num_tried().values(), strict=True)}
    if len(set(trials.values())) > 1:
        found.append(Difference(group.task, "trials", trials, "The numbers of configurations that were tried differ."))
    return found
