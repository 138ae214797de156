"""Verdicts over seeds, and the audit of other differences between the runs."""

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
from triptych.report.read_records import PrunedRun, RecordedRun
from triptych.report.statistics.bootstrap import scored_by
from triptych.report.statistics.metrics import metric_key, primary_metric, validation_key
from triptych.report.statistics.significance import Welch, pool_deviations, seeds_to_decide
from triptych.tasks.metric_specs import MetricSpec

TOLERANCE = 0.02
"""Params, FLOPs and tokens per step that differ by less than this share count as equal in the audit."""


@dataclass(frozen=True, slots=True)
class ComparedConfig:
    """One configuration of an architecture, with the runs of its seeds.

    Attributes:
        architecture: of the runs.
        runs: the seeds.
        label: settings that distinguish it from other configurations of its architecture; empty if it is the only one.
    """

    architecture: str
    runs: tuple[RecordedRun, ...]
    label: str

    @property
    def name(self) -> str:
        """In a sentence: the architecture and the label."""
        return ARCHITECTURES[self.architecture].word + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one task on the same data, in the order of ``ARCHITECTURES``, and the metric that compares them.
    Untested and pruned trials of a search are kept separately; they count as tried."""

    task: str
    data: str
    metric: MetricSpec
    runs: tuple[RecordedRun, ...]
    untested: tuple[RecordedRun, ...] = ()
    pruned: tuple[PrunedRun, ...] = ()

    def value(self, run: RecordedRun) -> float:
        """The run's value of the metric; NaN if it is not finite."""
        return run.metrics[metric_key(self.metric, run)]

    def optimum(self, run: RecordedRun) -> float | None:
        """The best reachable value for the run, if known."""
        return run.optimum.get(metric_key(self.metric, run))

    @property
    def note(self) -> str:
        """Notes for the verdict; the runs were scored alike only if the predictions show it."""
        return self.metric.note if not self.metric.counted or len(self._counts) == 1 else ""

    @property
    def scored_differently(self) -> str:
        """Why values of the metric cannot be compared; otherwise empty."""
        counts = sorted(count for count in self._counts if count is not None)
        if self.metric.counted and len(counts) > 1:
            numbers = " and ".join(f"{count:,.0f}" for count in counts)
            return f"the runs scored different numbers of {self.metric.counted} ({numbers})."
        recorded = [run.signatures or {} for run in self.runs]
        signatures = [{*signature.get(self.metric.name, "").split("|")} for signature in recorded]
        differing = set[str]().union(*signatures) - signatures[0].intersection(*signatures) - {""}
        if said := ", ".join(sorted(field for field in differing if not field.startswith("version:"))):
            return f"{self.metric.title} was computed with different settings ({said})."
        return ""

    @property
    def not_comparable(self) -> str:
        """Why the architectures cannot be compared; otherwise empty."""
        if reason := self.runs[0].task_info.not_comparable:
            return reason
        if len({run.data_sha256 for run in self.runs}) > 1:
            return "the runs did not use the same data (data_sha256 differs)."
        return self.scored_differently

    @property
    def _counts(self) -> set[float | None]:
        """The number of scored items in the test, of each run; None: unknown."""
        return {scored_by(self.metric, run) for run in self.runs}

    def by_architecture(self) -> dict[str, list[ComparedConfig]]:
        """The configurations of each architecture with runs."""
        found = {}
        for architecture, members in groupby(self.runs, key=lambda run: run.architecture):
            alike: dict[object, list[RecordedRun]] = {}
            for run in members:
                alike.setdefault(_configuration(run), []).append(run)
            runs = list(alike.values())
            labels = _labels([of_one[0] for of_one in runs])
            found[architecture] = [ComparedConfig(architecture, tuple(r), x) for r, x in zip(runs, labels, strict=True)]
        return found

    def num_tried(self) -> dict[str, int]:
        """The number of configurations tried per architecture, tested or not."""
        count = {}
        for name in self.by_architecture():
            runs = [run for run in (*self.runs, *self.untested) if run.architecture == name]
            known = [run.settings for run in runs]  # of a trial with several seeds, another may have been pruned
            others = [run.settings for run in self.pruned if run.architecture == name and run.settings not in known]
            count[name] = len({_configuration(run) for run in runs}) + len({str(settings) for settings in others})
        return count

    @property
    def counts_alike(self) -> bool:
        """Whether the FLOPs of all runs are counted alike; otherwise they cannot be compared."""
        return len({run.train_flops_of for run in self.runs}) == 1

    @property
    def contenders(self) -> list[ComparedConfig]:
        """All configurations."""
        return [contender for found in self.by_architecture().values() for contender in found]

    @property
    def varied(self) -> dict[str, str]:
        """Settings that vary within an architecture, as in a sweep: short names, and the keys of the settings."""
        first = [[c.runs[0] for c in contenders] for contenders in self.by_architecture().values()]
        return {name: key for runs in first for name, key in _differing(runs).items()}

    def best(self, contenders: Sequence[ComparedConfig]) -> ComparedConfig:
        """The configuration that is best on the validation set, by the metric, or by the loss if it was not
        validated."""
        key = validation_key(self.metric, contenders[0].runs[0])
        higher = self.metric.higher_is_better
        if not all(key in run.metrics for contender in contenders for run in contender.runs):
            key, higher = "val/loss", False

        def quality(contender: ComparedConfig) -> float:
            values = [run.metrics.get(key, math.nan) for run in contender.runs]
            mean = fmean(values)
            return (mean if higher else -mean) if math.isfinite(mean) else -math.inf

        return max(contenders, key=quality)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one group: the winning architecture, or ``None`` if the runs are inconclusive. Then commands train
    more seeds: enough to decide between the two best, if the observed difference is real. The price is the number of
    these runs and their time."""

    task: str
    data: str
    metric: str
    winner: str | None
    text: str
    commands: tuple[str, ...] = ()
    price: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the runs of a group, other than the architecture."""

    task: str
    field: str
    values: dict[str, Any]
    text: str


def group_runs(
    runs: Sequence[RecordedRun], untested: Sequence[RecordedRun] = (), pruned: Sequence[PrunedRun] = ()
) -> list[Group]:
    """Groups runs by task and data.

    Args:
        runs: sorted by task, data and architecture, as ``find_runs`` returns them.
        untested: trials of a search.
        pruned: pruned trials of a search.
    """
    if untested and not runs:
        raise ValueError(
            f"{untested[0].directory}: trials of a search are not tested; test the best one with the command that the "
            "search printed (also in search.html)"
        )
    members = [(key, tuple(found)) for key, found in groupby(runs, key=lambda run: (run.task, run.data))]
    return [
        Group(
            *key,
            primary_metric(found),
            found,
            tuple(run for run in untested if (run.task, run.data) == key),
            tuple(run for run in pruned if (run.task, run.data) == key),
        )
        for key, found in members
    ]


def judge(group: Group) -> Verdict:
    """Finds the architecture that is significantly better than each other one.

    A winner needs two seeds of each architecture and, against every other architecture, a Welch interval that excludes
    zero. As all of these must hold at once, the probability of a false winner is at most 5 %.
    """
    winner, text, chosen = _judge(group)
    if group.note:
        text += f" {group.note}"
    seeds = _wanted_seeds(group, chosen) if winner is None else 0
    commands = tuple(_train_more(contender.runs[0], seeds) for contender in chosen) if seeds else ()
    price = _price(chosen, seeds) if seeds else ""
    return Verdict(group.task, group.data, group.metric.key, winner, text, commands, price)


def _judge(group: Group) -> tuple[str | None, str, Sequence[ComparedConfig]]:
    """The winner, the verdict in words, and the compared configurations, if any."""
    metric = group.metric
    found = group.by_architecture()
    if len(found) == 1:
        return None, f"All runs are {_name(group.runs[0])}: there is nothing to compare them with.", ()
    if group.not_comparable:
        return None, f"Not comparable: {group.not_comparable}", ()
    chosen = {name: group.best(contenders) for name, contenders in found.items()}
    note = _choice(found, chosen, group.num_tried())
    winner, text = _duel(metric, {name: [(run, group.value(run)) for run in c.runs] for name, c in chosen.items()})
    return winner, text + note, [*chosen.values()]


def _wanted_seeds(group: Group, chosen: Sequence[ComparedConfig]) -> int:
    """The number of seeds that would probably give a winner; 0 if 100 are too few, or for a study, which
    computes its own number."""
    values = [[group.value(run) for run in contender.runs] for contender in chosen]
    if not chosen or not all(math.isfinite(value) for found in values for value in found) or chosen[0].runs[0].variant:
        return 0
    tried = min(map(len, values))
    if tried == 1:
        return 3
    first, second = sorted(values, key=fmean, reverse=group.metric.higher_is_better)[:2]
    deviation = pool_deviations(first, second)
    needed = seeds_to_decide(abs(fmean(first) - fmean(second)), deviation)
    return 0 if needed is None or deviation == 0 else max(needed, tried + 1)


def _price(chosen: Sequence[ComparedConfig], seeds: int) -> str:
    """The number of additional runs for this many seeds, and their time, estimated from the finished runs."""
    new = [len({*range(1, seeds + 1)} - {run.seed for run in contender.runs}) for contender in chosen]
    seconds = [fmean(run.wall_time_s for run in contender.runs) for contender in chosen]
    whole = sum(count * each for count, each in zip(new, seconds, strict=True))
    return f"{counted(sum(new), 'more run')}, about {duration(whole)} one after another"


def _train_more(run: RecordedRun, seeds: int) -> str:
    """The command that trains seeds 1 to ``seeds``; it skips runs that a sweep has left in its folder."""
    words = shlex.split(run.command)[2:]
    own = [word for word in words if not word.startswith(("seed=", "run_dir="))]
    places = [Path(str(read_value(word))).parent for word in words if word.startswith("run_dir=")]
    folders = [write_override("run_dir", str(place)) for place in places]
    return shlex.join(["triptych", "train", "-m", *own, f"seed=range(1,{seeds + 1})", *folders])


def _choice(
    found: dict[str, list[ComparedConfig]], chosen: dict[str, ComparedConfig], num_tried: dict[str, int]
) -> str:
    """Which configurations were compared, if an architecture has several."""
    said = [
        f"{ARCHITECTURES[name].word} with {chosen[name].label} (of {len(contenders)} configurations)"
        for name, contenders in found.items()
        if len(contenders) > 1
    ]
    trials = " The architectures had different numbers of trials." if len(set(num_tried.values())) > 1 else ""
    return f" Selected on the validation set: {'; '.join(said)}.{trials}" if said else ""


def _duel(metric: MetricSpec, results: dict[str, list[tuple[RecordedRun, float]]]) -> tuple[str | None, str]:
    """The verdict on one configuration per architecture, from the value of each of its runs."""
    values = {name: [value for _, value in found] for name, found in results.items()}
    if diverged := [run.directory for found in results.values() for run, value in found if not math.isfinite(value)]:
        return None, f"No verdict: {metric.title} is not finite in {', '.join(diverged)}."
    for found in results.values():
        if len({run.seed for run, _ in found}) < len(found):
            return None, f"No verdict: some of the {len(found)} {_name(found[0][0])} runs have the same seed."
    means = {name: fmean(found) for name, found in values.items()}
    ranking = sorted(means, key=lambda name: means[name], reverse=metric.higher_is_better)
    counts = {len(found) for found in values.values()}
    if counts == {1}:
        shown = [f"{ARCHITECTURES[name].word} {metric.show(means[name])}" for name in ranking]
        return None, f"{' vs '.join(shown)}, one seed each: a verdict needs more seeds."
    shown = [f"{ARCHITECTURES[name].word} {metric.show(means[name])} ({_seeds(values[name])})" for name in ranking]
    if 1 in counts:
        return None, f"{' vs '.join(shown)}: a verdict needs more seeds."
    best, *others = ranking
    sign = 1 if metric.higher_is_better else -1
    lead = []
    wins = True
    for other in others:
        low, high = sorted(sign * end for end in Welch.of(values[best], values[other]).interval)
        wins = wins and low > 0
        ahead = metric.show_difference(abs(means[best] - means[other]))
        reason = f"95 % interval {metric.show_difference(low, high)}" if math.isfinite(low) else "no spread over seeds"
        lead.append(f"{ahead} ahead of {ARCHITECTURES[other].word} ({reason})")
    said = f"{' vs '.join(shown)}; {ARCHITECTURES[best].word} is {', '.join(lead)}"
    if wins:
        return best, f"{said}: {ARCHITECTURES[best].word} is better."
    return None, f"{said}: no significant winner."


def _configuration(run: RecordedRun) -> object:
    """What seeds of one configuration share: the settings and the variant of a study. The number of steps is not
    included, because early stopping ends each seed at a different step. Nor is a step limit solved by
    ``triptych.planning.matching``, which depends on the order of the examples and so on the seed. Without settings, the
    number of steps identifies the configuration. Runs of a study's variant start from other runs of the same seed."""
    solved = ((run.match or {}).get("solved") or {}).get("trainer.max_steps")
    steps = None if run.settings else run.steps
    own = {key: x for key, x in run.settings.items() if x != solved or not key.endswith("max_steps")}
    if run.variant:
        own.pop("init_from", None)
    return run.variant, run.experiment, run.params, steps, tuple(sorted(own.items()))


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Labels that distinguish runs of different configurations: the variants of a study, or the settings that
    differ."""
    if len({run.variant for run in runs}) == len(runs) and runs[0].variant:
        return ["" if run.variant == run.architecture else run.variant.replace("_", " ") for run in runs]
    if len(runs) == 1:
        return [""]
    differing = list(_differing(runs).items())[:MOST_IN_LABELS]
    labels = [", ".join(f"{x}={run.settings[key]}" for x, key in differing if key in run.settings) for run in runs]
    if len(set(labels)) == len(runs):
        return labels
    info = [f"{run.experiment}, {run.params:,} parameters, {counted(run.steps, 'step')}" for run in runs]
    return [f"{label}, {fact}" if label else fact for label, fact in zip(labels, info, strict=True)]


def _differing(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """The settings that differ between runs, by their short names. A setting that occurs twice, such as block.dropout
    and model.encoder.dropout, counts once, but another stack may have a different value. A setting that some runs lack
    belongs to a part that others have; it counts only if the parts do not distinguish the runs."""
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


def _name(run: RecordedRun) -> str:
    return ARCHITECTURES[run.architecture].word


def _seeds(values: Sequence[float]) -> str:
    return "1 seed" if len(values) == 1 else f"mean of {len(values)} seeds"


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
MOST_IN_LABELS = 4
_SETTINGS = ("shape.", "block.", "batch.", "task.", "optimizer", "scheduler", "callbacks.", "init_from")
_OF_THE_ARCHITECTURE = ("_target_", "causal", "cross_attention", "max_length")
"""Settings of a stack that follow from the architecture or from its input."""


def audit(group: Group) -> list[Difference]:
    """Lists differences between the runs of a group other than the architecture.

    Returns:
        one entry per field that differs; params, FLOPs and tokens per step only from 2 % on. Settings and the number of
            configurations tried are those of each architecture's best configuration.
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


def _is_of_one_stack(run: RecordedRun, key: str) -> bool:
    """Whether a stack overrides what ``block`` and ``shape`` set for all."""
    model, _, own = key.partition(".")
    stack, _, name = own.partition(".")
    if model != "model" or not stack.endswith(("encoder", "decoder")) or name in _OF_THE_ARCHITECTURE:
        return False
    of_all = run.settings.get(f"block.{name}", run.settings.get(f"shape.{name}", "absent"))
    return run.settings[key] != of_all


def _audit_choice(group: Group) -> list[Difference]:
    first = [group.best(contenders).runs[0] for contenders in group.by_architecture().values()]
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
    pooled = [run for run in known if "model.head.pooling" in run.settings]
    pools = {run.directory: str(run.settings["model.head.pooling"]) for run in pooled}
    if len(set(pools.values())) > 1:
        used = [_POOLS.get(pool, pool) for pool in pools.values()]
        said = ", ".join(f"{_name(run)} uses {states}" for run, states in zip(pooled, used, strict=True))
        found.append(Difference(group.task, "pooling", pools, f"The pooling differs: {said}."))
    trials = {run.directory: count for run, count in zip(first, group.num_tried().values(), strict=True)}
    if len(set(trials.values())) > 1:
        found.append(Difference(group.task, "trials", trials, "The numbers of tried configurations differ."))
    return found
