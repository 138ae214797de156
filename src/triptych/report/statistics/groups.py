"""The runs of one task on the same data: their configurations, and the levels of what is compared.

Tested by tests/report/statistics/test_verdicts.py and test_factors.py.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import cycle, groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from triptych.config import counted
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import PrunedRun, RecordedRun
from triptych.report.statistics.bootstrap import scored_by
from triptych.report.statistics.edges import Edge
from triptych.report.statistics.factors import (
    BLOCK,
    MODEL,
    OF_THE_TEST,
    Factor,
    check_factors,
    choose_factor,
    find_roles,
    level_of,
    setting_of,
    sort_runs,
)
from triptych.report.statistics.metrics import metric_key, own_metric, primary_metric, validation_key
from triptych.report.statistics.pair_test import PairTest, Sample, Scale
from triptych.tasks.metric_specs import MetricSpec

_OF_THE_ARCHITECTURE = ("_target_", "causal", "cross_attention", "max_length")
"""Settings of a stack that follow from the architecture or from its input."""

MOST_IN_LABELS = 4
"""Settings in the label of a configuration."""
MOST_LEVELS = 12
"""Levels that a verdict lists, and of which each pair is compared."""
EARLY = 0.1
"""The share of the steps of a run before which a validation shows what an untrained network scores."""
MOST_SHOWN = 20
"""Configurations in charts."""


@dataclass(frozen=True, slots=True)
class ComparedConfig:
    """One configuration, with the runs of its seeds.

    Attributes:
        level: of the compared factor, in a sentence: such as the architecture.
        architecture: of the runs.
        style: the architecture in whose colour the level is drawn.
        runs: the seeds.
        label: settings that distinguish it from other configurations of its level; empty if it is the only one.
    """

    level: str
    architecture: str
    style: str
    runs: tuple[RecordedRun, ...]
    label: str

    @property
    def name(self) -> str:
        """In a sentence: the level and the label."""
        return self.level + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True)
class Group:
    """The runs of one task on the same data, in the order of the levels, and the metric that compares them.
    Untested and pruned trials of a search are kept separately; they count as tried. ``by`` are the compared factors;
    ``factors`` are these and the others, with their roles; ``tuned`` are settings said to be tuned for each level."""

    task: str
    data: str
    metric: MetricSpec
    runs: tuple[RecordedRun, ...]
    untested: tuple[RecordedRun, ...] = ()
    pruned: tuple[PrunedRun, ...] = ()
    by: tuple[str, ...] = (MODEL,)
    factors: tuple[Factor, ...] = ()
    tuned: tuple[str, ...] = ()

    def value(self, run: RecordedRun) -> float:
        """The run's value of the metric; NaN if it is not finite."""
        return run.metrics[metric_key(self.metric, run)]

    def show(self, run: RecordedRun, value: float) -> str:
        """Formats a value of the metric, as the run has it."""
        return own_metric(self.metric, run).show(value)

    def metric_of(self, level: str) -> MetricSpec:
        """The metric, as the runs of this level have it."""
        return own_metric(self.metric, self.chosen[level].runs[0])

    def optimum(self, run: RecordedRun) -> float | None:
        """The best reachable value for the run, if known."""
        return run.optimum.get(metric_key(self.metric, run))

    @property
    def commonest_class(self) -> tuple[float, str] | None:
        """Share and label of the most frequent class in the test set; None if unknown, or not the same for all runs."""
        matrices = [run.confusion_matrix for run in self.runs if run.confusion_matrix]
        sizes = [[sum(row) for row in matrix["counts"]] for matrix in matrices]
        if self.metric.name != "accuracy" or not matrices or any(of_one != sizes[0] for of_one in sizes):
            return None
        size, label = max(zip(sizes[0], matrices[0]["labels"], strict=True))
        return size / sum(sizes[0]), label

    @property
    def floor(self) -> float | None:
        """The score of guessing: what the corpus knows (``Corpus``), otherwise that of the most frequent class for
        accuracy, 0 for other shares of right answers, 8 bits per byte, or else the worst score of a first validation
        in the first tenth of a run. None if unknown."""
        known = [
            run.floor[key] for run in self.runs if run.floor and (key := metric_key(self.metric, run)) in run.floor
        ]
        if known:
            return (max if self.metric.higher_is_better else min)(known)
        if self.commonest_class is not None:
            return self.commonest_class[0]
        if self.metric.unit == "%" and self.metric.higher_is_better and self.metric.name != "accuracy":
            return 0.0
        if self.metric.name.endswith("bits_per_byte"):
            return 8.0
        curves = [(run.curves.get(validation_key(self.metric, run)), run.steps) for run in self.runs]
        early = [curve.values[0] for curve, steps in curves if curve and curve.steps[0] < EARLY * steps]
        first = [value for value in early if math.isfinite(value)]
        return (min if self.metric.higher_is_better else max)(first, default=None)

    @property
    def ceiling(self) -> float | None:
        """The best reachable score of any run, if known; 1 for shares of right answers."""
        known = [best for run in self.runs if (best := self.optimum(run)) is not None]
        if known or self.metric.unit != "%":
            return (max if self.metric.higher_is_better else min)(known, default=None)
        return float(self.metric.higher_is_better)

    @cached_property
    def chosen(self) -> dict[str, ComparedConfig]:
        """The configuration of each level that is best on the validation set."""
        return {level: self.best(contenders) for level, contenders in self.by_level.items()}

    @cached_property
    def samples(self) -> dict[str, Sample]:
        """The values of these configurations. A share of right answers has the grain of one test example."""
        found = {}
        for level, contender in self.chosen.items():
            runs, sizes = contender.runs, {len(run.predictions) for run in contender.runs}
            grain = 1 / sizes.pop() if self.metric.unit == "%" and len(sizes) == 1 and 0 not in sizes else 0.0
            seeds, is_bound = tuple(run.seed for run in runs), own_metric(self.metric, runs[0]).is_bound
            found[level] = Sample(contender.name, (*map(self.value, runs),), seeds, grain, is_bound)
        return found

    @cached_property
    def learned(self) -> dict[str, list[float]]:
        """Those of the runs that learned."""
        scale = self.scale([*self.samples.values()])
        return {level: scale.learned(sample) for level, sample in self.samples.items()}

    def scale(self, samples: Sequence[Sample]) -> Scale:
        """The scale of the metric for these samples."""
        higher = self.metric.higher_is_better
        return Scale.of(samples, higher_is_better=higher, floor=self.floor, ceiling=self.ceiling)

    def test(self, first: str, second: str) -> PairTest:
        """The test of two levels."""
        return PairTest.of(self.samples[first], self.samples[second], self.scale([*self.samples.values()]))

    @property
    def note(self) -> str:
        """Notes for the verdict; the runs were scored alike only if the predictions show it."""
        return self.metric.note if len(self._counts) == 1 else ""

    @property
    def scored_differently(self) -> str:
        """Why values of the metric cannot be compared; otherwise empty."""
        if len({run.data_sha256 for run in self.runs}) > 1:
            return "the runs did not use the same data (data_sha256 differs)."
        for key in OF_THE_TEST:
            values = dict.fromkeys(str(run.settings[key]) for run in self.runs if key in run.settings)
            if len(values) > 1:
                return f"the runs were tested with different values of {key} ({', '.join(values)})."
        if self.metric.name == "loss" and len({run.tokenizer_sha256 for run in self.runs}) > 1:
            return "the loss is per token, and the tokenizers differ."
        counts = sorted(count for count in self._counts if count is not None)
        if len(counts) > 1:
            numbers = " and ".join(f"{count:,.0f}" for count in counts)
            return (
                f"the runs scored different numbers of {self.metric.counted} ({numbers}); expected a shape.max_length "
                "at which no text is truncated."
            )
        recorded = [run.signatures or {} for run in self.runs]
        signatures = [{*signature.get(self.metric.name, "").split("|")} for signature in recorded]
        differing = set[str]().union(*signatures) - signatures[0].intersection(*signatures) - {""}
        if said := ", ".join(sorted(field for field in differing if not field.startswith("version:"))):
            return f"{self.metric.title} was computed with different settings ({said})."
        return ""

    @property
    def not_comparable(self) -> str:
        """Why the architectures cannot be compared; otherwise empty."""
        return self.runs[0].task_info.not_comparable or self.scored_differently

    @cached_property
    def _counts(self) -> set[float | None]:
        """The number of scored items in the test, of each run; None: unknown, or not counted by the metric."""
        return {scored_by(self.metric, run) if self.metric.counted else None for run in self.runs}

    @cached_property
    def by_level(self) -> dict[str, list[ComparedConfig]]:
        """The configurations of each level of the compared factor: of each architecture, or of each value."""
        alike: dict[str, dict[object, list[RecordedRun]]] = {}
        for run in self.runs:
            alike.setdefault(level_of(run, self.by), {}).setdefault(_configuration(run), []).append(run)
        return {
            level: [
                ComparedConfig(self.word(level), runs[0].architecture, self.styles[level], tuple(runs), label)
                for runs, label in zip(found.values(), _labels([runs[0] for runs in found.values()]), strict=True)
            ]
            for level, found in alike.items()
        }

    @cached_property
    def styles(self) -> dict[str, str]:
        """The architecture in whose colour each level is drawn: its own, otherwise one after another."""
        levels = dict.fromkeys(level_of(run, self.by) for run in self.runs)
        return {level: level if self.by == (MODEL,) else style for level, style in zip(levels, cycle(ARCHITECTURES))}

    @cached_property
    def blocks(self) -> dict[str, "Group"]:
        """The runs of each level of the blocks; without blocks, all runs."""
        factors = [factor for factor in self.factors if factor.role == BLOCK]
        keys = [factor.key for factor in factors]
        every: tuple[Sequence[Any], ...] = self.runs, self.untested, self.pruned
        found = {}
        for label in dict.fromkeys(level_of(run, keys) for run in sort_runs(self.runs, factors) if keys):
            runs, untested, pruned = (tuple(x for x in some if level_of(x, keys) == label) for some in every)
            found[ARCHITECTURES[label].word if keys == [MODEL] else label] = replace(
                self, runs=runs, untested=untested, pruned=pruned, factors=()
            )
        return found or {"": self}

    @property
    def shared_blocks(self) -> dict[str, "Group"]:
        """The blocks that have runs of all levels of the compared factor."""
        return {label: group for label, group in self.blocks.items() if len(group.by_level) == len(self.by_level)}

    def word(self, level: str) -> str:
        """A level in a sentence."""
        return ARCHITECTURES[level].word if self.by == (MODEL,) else level

    @cached_property
    def num_tried(self) -> dict[str, int]:
        """The number of configurations tried per level, tested or not."""
        tried: dict[str, set[object]] = {level: set() for level in self.by_level}
        known: dict[str, set[str]] = {level: set() for level in self.by_level}
        for run in (*self.runs, *self.untested):
            if (level := level_of(run, self.by)) in tried:
                tried[level].add(_configuration(run))
                known[level].add(str(run.settings))
        for trial in self.pruned:  # of a trial with several seeds, another may have been finished
            if (level := level_of(trial, self.by)) in tried and str(trial.settings) not in known[level]:
                tried[level].add(str(trial.settings))
        return {level: len(configurations) for level, configurations in tried.items()}

    @cached_property
    def tuned_settings(self) -> set[str]:
        """The settings that differ between the configurations tried of each level, tested or not, and ``tuned``."""
        tried: list[RecordedRun | PrunedRun] = [*_one_per_configuration((*self.runs, *self.untested)), *self.pruned]
        of_levels: dict[str, list[Mapping[str, object]]] = {level: [] for level in self.by_level}
        for run in tried:
            of_levels.get(level_of(run, self.by), []).append(run.settings)
        differing = [{*_differing(x).values()} for x in of_levels.values()]
        return set.intersection(*differing) | {*map(setting_of, self.tuned)}

    @cached_property
    def counts_alike(self) -> bool:
        """Whether the FLOPs of all runs are counted alike; otherwise they cannot be compared."""
        return len({run.train_flops_of for run in self.runs}) == 1

    @property
    def contenders(self) -> list[ComparedConfig]:
        """All configurations."""
        return [contender for found in self.by_level.values() for contender in found]

    @cached_property
    def strongest(self) -> "Group":
        """The runs of the ``MOST_SHOWN`` configurations that are best on the validation set, which charts show."""
        if len(self.contenders) <= MOST_SHOWN:
            return self
        kept = {run.directory for one in self.rank(self.contenders)[:MOST_SHOWN] for run in one.runs}
        return replace(self, runs=tuple(run for run in self.runs if run.directory in kept))

    @cached_property
    def varied(self) -> dict[str, str]:
        """The compared settings, and those that vary within a level, as in a sweep: short names, and their keys."""
        compared = [setting_of(key) for key in self.by if key != MODEL]
        first = [[c.runs[0].settings for c in contenders] for contenders in self.by_level.values()]
        within = {name: key for configs in first for name, key in _differing(configs).items()}
        return {key.rpartition(".")[2]: key for key in compared} | within

    def differing_settings(self, runs: Sequence[RecordedRun]) -> list[str]:
        """The settings that differ between runs of several levels, in addition to the compared factor and its options.

        These settings are left out: what follows from the architecture (``model.*``, unless a stack overrides a shared
        value, or the command line sets it), what matching a budget solved, and what was tuned in each level.

        Args:
            runs: one per level.
        """
        known = [run for run in runs if run.settings]
        matched = [((run.match or {}).get("solved") or {}).items() for run in known]
        solved = {(name.rpartition(".")[2], value) for items in matched for name, value in items}
        keys = dict.fromkeys(
            key for run in known for key in run.settings if not key.startswith("model.") or _is_of_one_stack(run, key)
        )
        compared = tuple(f"{setting_of(key)}." for key in self.by if key != MODEL)

        def differs(key: str) -> bool:
            if f"{key}.".startswith(compared):
                return False
            values = {str(run.settings.get(key, "absent")) for run in known}
            return len(values - {"None"} if key in ("match", "reference") else values) > 1

        left_out = self.tuned_settings | {
            key for run in known for key, value in run.settings.items() if (key.rpartition(".")[2], value) in solved
        }
        return [key for key in keys if key not in left_out and differs(key)]

    def edges(self, contenders: Sequence[ComparedConfig]) -> list[str]:
        """The numeric settings of the best configuration that are the smallest or the largest tried: a better value may
        lie beyond, so this variant must not lose.

        Args:
            contenders: the configurations of one variant.
        """
        best, found, tried = self.best(contenders), list[str](), [contender.runs[0] for contender in contenders]
        name, level = best.runs[0].variant.replace("_", " ") or best.level, level_of(tried[0], self.by)
        trials: list[RecordedRun | PrunedRun] = [*self.untested, *self.pruned]
        settings = [run.settings for run in (*tried, *(trial for trial in trials if level_of(trial, self.by) == level))]
        for key in _differing(settings).values():
            values = [of_run.get(key) for of_run in settings]
            numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
            own = best.runs[0].settings.get(key)
            if own in numbers and (edge := Edge.find(key, own, numbers)) is not None:
                found.append(edge.describe(name))
        return found

    def best(self, contenders: Sequence[ComparedConfig]) -> ComparedConfig:
        """The configuration that is best on the validation set."""
        return self.rank(contenders)[0]

    def rank(self, contenders: Sequence[ComparedConfig]) -> list[ComparedConfig]:
        """Configurations from the best to the worst on the validation set, by the metric, or by the loss if it was not
        validated."""
        keys = {run.directory: validation_key(self.metric, run) for one in contenders for run in one.runs}
        sign = 1 if self.metric.higher_is_better else -1
        if not all(keys[run.directory] in run.metrics for one in contenders for run in one.runs):
            keys, sign = dict.fromkeys(keys, "val/loss"), -1

        def quality(contender: ComparedConfig) -> float:
            mean = sign * fmean(run.metrics.get(keys[run.directory], math.nan) for run in contender.runs)
            return mean if math.isfinite(mean) else -math.inf

        return sorted(contenders, key=quality, reverse=True)


def group_runs(
    runs: Sequence[RecordedRun],
    untested: Sequence[RecordedRun] = (),
    pruned: Sequence[PrunedRun] = (),
    by: Sequence[str] = (),
    tuned: Sequence[str] = (),
) -> list[Group]:
    """Groups runs by task and data.

    Args:
        runs: sorted by task, data and architecture, as ``find_runs`` returns them.
        untested: trials of a search.
        pruned: pruned trials of a search.
        by: keys of the compared factors; empty: see ``choose_factor``.
        tuned: keys of settings that are tuned, not compared.

    Raises:
        ValueError: nothing was tested, or a compared setting does not vary.
    """
    check_factors(_one_per_configuration((*runs, *untested)), by, tuned)
    if untested and not runs:
        raise ValueError(
            f"{untested[0].directory}: trials of a search are not tested; test the best one with the command that the "
            "search printed (also in search.html)"
        )
    groups = []
    for key, members in groupby(runs, key=lambda run: (run.task, run.data)):
        found, partial = _without_partial_tests([*members])
        trials = (*partial, *(run for run in untested if (run.task, run.data) == key))
        stopped = tuple(run for run in pruned if (run.task, run.data) == key)
        configurations = _one_per_configuration(found)
        own = tuple(by) or (choose_factor(configurations, tuned),)
        group = Group(*key, primary_metric(found), found, trials, stopped, own, tuned=tuple(tuned))
        factors = find_roles(configurations, own, [*tuned, *_searched(trials)])
        if any(run.variant or not run.settings for run in found):
            factors = factors[: len(own)]  # the claims of a study say what is compared
        groups.append(replace(group, runs=sort_runs(found, factors), factors=factors))
    return groups


@cache
def _configuration(run: RecordedRun) -> object:
    """What seeds of one configuration share: the settings and the variant of a study. The number of steps is not
    included, because early stopping ends each seed at a different step. Nor is a step limit solved by
    ``triptych.planning.matching``, which depends on the order of the examples and so on the seed. Without settings, the
    number of steps identifies the configuration. Runs of a study's variant start from other runs of the same seed."""
    solved = ((run.match or {}).get("solved") or {}).get("trainer.max_steps")
    steps = None if run.settings else run.steps
    own = {key: repr(x) for key, x in run.settings.items() if x != solved or not key.endswith("max_steps")}
    if run.variant:
        own.pop("init_from", None)
    return run.variant, run.experiment, run.params, steps, tuple(sorted(own.items()))


def _without_partial_tests(runs: Sequence[RecordedRun]) -> tuple[tuple[RecordedRun, ...], tuple[RecordedRun, ...]]:
    """The runs, and apart from them the trials: those that read a part of the test set, if other runs of the same
    architecture read all of it."""
    is_whole = [repr(run.settings.get("trainer.limit_test_batches")) in ("None", "1.0") for run in runs]
    known = {run.architecture for run, whole in zip(runs, is_whole, strict=True) if whole}
    is_kept = [whole or run.architecture not in known for run, whole in zip(runs, is_whole, strict=True)]
    kept, trials = ([run for run, x in zip(runs, is_kept, strict=True) if x == side] for side in (True, False))
    return tuple(kept), tuple(trials)


def _one_per_configuration(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    return [*{_configuration(run): run for run in reversed(runs)}.values()][::-1]


def _searched(trials: Sequence[RecordedRun]) -> set[str]:
    """The settings that differ between the trials of one search, whose directories have the same parent."""
    folders: dict[Path, list[Mapping[str, object]]] = {}
    for trial in trials:
        folders.setdefault(Path(trial.directory).parent, []).append(trial.settings)
    return {key for found in folders.values() for key in _differing(found).values()}


def _is_of_one_stack(run: RecordedRun, key: str) -> bool:
    """Whether a stack overrides what ``block`` and ``shape`` set for all, or the command line sets a key of a model."""
    if any(word.lstrip("+").startswith(f"{key}=") for word in shlex.split(run.command)):
        return True
    model, _, own = key.partition(".")
    stack, _, name = own.partition(".")
    if model != "model" or not stack.endswith(("encoder", "decoder")) or name in _OF_THE_ARCHITECTURE:
        return False
    of_all = run.settings.get(f"block.{name}", run.settings.get(f"shape.{name}", "absent"))
    return run.settings[key] != of_all


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Labels that distinguish runs of different configurations: the variants of a study, or the settings that
    differ."""
    if len({run.variant for run in runs}) == len(runs) and runs[0].variant:
        return ["" if run.variant == run.architecture else run.variant.replace("_", " ") for run in runs]
    if len(runs) == 1:
        return [""]
    keys = _differing([run.settings for run in runs])

    def label(names: Sequence[str]) -> list[str]:
        found = [{name: run.settings[keys[name]] for name in names if keys[name] in run.settings} for run in runs]
        return [", ".join(f"{name}={value}" for name, value in of_run.items()) for of_run in found]

    def count(names: Sequence[str]) -> int:
        return len({*label(names)} - {""})

    chosen = list[str]()
    while len(chosen) < min(MOST_IN_LABELS, len(keys)) and count(chosen) < len(runs):
        best = max(keys, key=lambda name: count([*chosen, name]))
        if count([*chosen, best]) <= count(chosen):
            break
        chosen.append(best)
    labels = label(chosen)
    if len(set(labels)) == len(runs):
        return labels
    info = [f"{run.experiment}, {run.params:,} parameters, {counted(run.steps, 'step')}" for run in runs]
    return [f"{label}, {fact}" if label else fact for label, fact in zip(labels, info, strict=True)]


def _differing(configs: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """The settings that differ between configurations, by their short names. A setting that occurs twice, such as
    block.dropout and model.encoder.dropout, counts once, but another stack may have a different value. A setting that
    some lack belongs to a part that others have; it counts only if the parts do not distinguish the configurations."""
    every = dict.fromkeys(key for config in configs for key in config)
    common = [key for key in every if all(key in config for config in configs)]
    for keys in (common, every):
        differing: dict[str, str] = {}
        columns: dict[tuple[str, ...], str] = {}
        for key in keys:
            values = tuple(str(config.get(key)) for config in configs)
            short = key.rpartition(".")[2]
            if len({*values}) > 1 and (short, *values) not in columns:
                columns[short, *values] = key
                differing[key if short in differing else short] = key
        if len({*zip(*(values[1:] for values in columns), strict=True)}) == len(configs):
            break
    return differing
