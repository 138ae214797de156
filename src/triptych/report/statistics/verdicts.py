"""Verdicts over seeds."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from triptych.config import counted, duration
from triptych.config.overrides import read_value, write_override
from triptych.report.labels import setting
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import PrunedRun, RecordedRun
from triptych.report.statistics.bootstrap import scored_by
from triptych.report.statistics.edges import Edge
from triptych.report.statistics.factors import MODEL, check_factors, choose_factor, find_factors, level_of
from triptych.report.statistics.metrics import metric_key, primary_metric, validation_key
from triptych.report.statistics.pair_test import PairTest, Sample, Scale
from triptych.report.statistics.raised_seeds import describe_raised_seeds
from triptych.report.statistics.significance import MIN_SEEDS, pool_deviations, seeds_to_decide
from triptych.tasks.metric_specs import MetricSpec

_OF_THE_ARCHITECTURE = ("_target_", "causal", "cross_attention", "max_length")
"""Settings of a stack that follow from the architecture or from its input."""
_OF_THE_TEST = ("trainer.limit_test_batches", "task.num_beams", "task.length_penalty")
"""Settings that change the score of the same weights."""
MOST_IN_LABELS = 4
"""Settings in the label of a configuration."""


@dataclass(frozen=True, slots=True)
class ComparedConfig:
    """One configuration, with the runs of its seeds.

    Attributes:
        level: of the compared factor, in a sentence: such as the architecture.
        architecture: of the runs.
        runs: the seeds.
        label: settings that distinguish it from other configurations of its level; empty if it is the only one.
    """

    level: str
    architecture: str
    runs: tuple[RecordedRun, ...]
    label: str

    @property
    def name(self) -> str:
        """In a sentence: the level and the label."""
        return self.level + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one task on the same data, in the order of ``ARCHITECTURES``, and the metric that compares them.
    Untested and pruned trials of a search are kept separately; they count as tried. ``by`` are the compared factors."""

    task: str
    data: str
    metric: MetricSpec
    runs: tuple[RecordedRun, ...]
    untested: tuple[RecordedRun, ...] = ()
    pruned: tuple[PrunedRun, ...] = ()
    by: tuple[str, ...] = (MODEL,)

    def value(self, run: RecordedRun) -> float:
        """The run's value of the metric; NaN if it is not finite."""
        return run.metrics[metric_key(self.metric, run)]

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
        """The score of guessing: that of the most frequent class for accuracy, 0 for other shares of right answers;
        otherwise the worst score of a first validation. None if unknown."""
        if self.commonest_class is not None:
            return self.commonest_class[0]
        if self.metric.unit == "%" and self.metric.higher_is_better and self.metric.name != "accuracy":
            return 0.0
        curves = [run.curves.get(validation_key(self.metric, run)) for run in self.runs]
        first = [curve.values[0] for curve in curves if curve and math.isfinite(curve.values[0])]
        return (min if self.metric.higher_is_better else max)(first, default=None)

    @property
    def ceiling(self) -> float | None:
        """The best reachable score of any run, if known; 1 for shares of right answers."""
        known = [best for run in self.runs if (best := self.optimum(run)) is not None]
        if known or self.metric.unit != "%":
            return (max if self.metric.higher_is_better else min)(known, default=None)
        return float(self.metric.higher_is_better)

    def sample(self, contender: ComparedConfig) -> Sample:
        """The values of one configuration. A share of right answers has the grain of one test example."""
        runs, sizes = contender.runs, {len(run.predictions) for run in contender.runs}
        grain = 1 / sizes.pop() if self.metric.unit == "%" and len(sizes) == 1 and 0 not in sizes else 0.0
        return Sample(contender.name, tuple(map(self.value, runs)), tuple(run.seed for run in runs), grain)

    def scale(self, samples: Sequence[Sample]) -> Scale:
        """The scale of the metric for these samples."""
        higher = self.metric.higher_is_better
        return Scale.of(samples, higher_is_better=higher, floor=self.floor, ceiling=self.ceiling)

    @property
    def note(self) -> str:
        """Notes for the verdict; the runs were scored alike only if the predictions show it."""
        return self.metric.note if not self.metric.counted or len(self._counts) == 1 else ""

    @property
    def scored_differently(self) -> str:
        """Why values of the metric cannot be compared; otherwise empty."""
        if len({run.data_sha256 for run in self.runs}) > 1:
            return "the runs did not use the same data (data_sha256 differs)."
        for key in _OF_THE_TEST:
            values = dict.fromkeys(str(run.settings[key]) for run in self.runs if key in run.settings)
            if len(values) > 1:
                return f"the runs were tested with different values of {key} ({', '.join(values)})."
        if self.metric.name == "loss" and len({run.tokenizer_sha256 for run in self.runs}) > 1:
            return "the loss is per token, and the tokenizers differ."
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
        return self.runs[0].task_info.not_comparable or self.scored_differently

    @property
    def _counts(self) -> set[float | None]:
        """The number of scored items in the test, of each run; None: unknown."""
        return {scored_by(self.metric, run) for run in self.runs}

    def by_level(self) -> dict[str, list[ComparedConfig]]:
        """The configurations of each level of the compared factor: of each architecture, or of each value."""
        alike: dict[str, dict[object, list[RecordedRun]]] = {}
        for run in self.runs:
            alike.setdefault(level_of(run, self.by), {}).setdefault(_configuration(run), []).append(run)
        return {
            level: [
                ComparedConfig(self.word(level), runs[0].architecture, tuple(runs), label)
                for runs, label in zip(found.values(), _labels([runs[0] for runs in found.values()]), strict=True)
            ]
            for level, found in alike.items()
        }

    def word(self, level: str) -> str:
        """A level in a sentence."""
        return ARCHITECTURES[level].word if self.by == (MODEL,) else level

    def num_tried(self) -> dict[str, int]:
        """The number of configurations tried per level, tested or not."""
        count = {}
        for name in self.by_level():
            runs = [run for run in (*self.runs, *self.untested) if level_of(run, self.by) == name]
            known = [run.settings for run in runs]  # of a trial with several seeds, another may have been pruned
            pruned = [run.settings for run in self.pruned if level_of(run, self.by) == name]
            others = [settings for settings in pruned if settings not in known]
            count[name] = len({_configuration(run) for run in runs}) + len({str(settings) for settings in others})
        return count

    @property
    def counts_alike(self) -> bool:
        """Whether the FLOPs of all runs are counted alike; otherwise they cannot be compared."""
        return len({run.train_flops_of for run in self.runs}) == 1

    @property
    def contenders(self) -> list[ComparedConfig]:
        """All configurations."""
        return [contender for found in self.by_level().values() for contender in found]

    @property
    def varied(self) -> dict[str, str]:
        """The compared settings, and those that vary within a level, as in a sweep: short names, and their keys."""
        compared = [key.replace("/", ".") for key in self.by if key != MODEL]
        first = [[c.runs[0] for c in contenders] for contenders in self.by_level().values()]
        within = {name: key for runs in first for name, key in _differing(runs).items()}
        return {key.rpartition(".")[2]: key for key in compared} | within

    def differing_settings(self, runs: Sequence[RecordedRun]) -> list[str]:
        """The settings that differ between runs of several levels, in addition to the compared factor and its options.

        These settings are left out: what follows from the architecture (``model.*``, unless a stack overrides a shared
        value, or the command line sets it), what matching a budget solved, and what was tuned in each level.

        Args:
            runs: one per level.
        """
        known = [run for run in runs if run.settings]
        tuned = [{*_differing([c.runs[0] for c in found]).values()} for found in self.by_level().values()]
        solved = [item for run in known for item in ((run.match or {}).get("solved") or {}).items()]
        keys = dict.fromkeys(
            key for run in known for key in run.settings if not key.startswith("model.") or _is_of_one_stack(run, key)
        )

        def is_solved(run: RecordedRun, key: str) -> bool:
            last = key.rpartition(".")[2]
            return any(last == name.rpartition(".")[2] and run.settings.get(key) == value for name, value in solved)

        compared = tuple(f"{key.replace('/', '.')}." for key in self.by if key != MODEL)

        def differs(key: str) -> bool:
            if f"{key}.".startswith(compared):
                return False
            values = {str(run.settings.get(key, "absent")) for run in known}
            return len(values - {"None"} if key in ("match", "reference") else values) > 1

        return [
            key
            for key in keys
            if differs(key) and key not in set.intersection(*tuned) and not any(is_solved(run, key) for run in known)
        ]

    def edges(self, contenders: Sequence[ComparedConfig]) -> list[str]:
        """The numeric settings of the best configuration that are the smallest or the largest tried: a better value may
        lie beyond, so this variant must not lose.

        Args:
            contenders: the configurations of one variant.
        """
        best, found = self.best(contenders), []
        name = best.runs[0].variant.replace("_", " ") or best.level
        for key in _differing([contender.runs[0] for contender in contenders]).values():
            values = [contender.runs[0].settings.get(key) for contender in contenders]
            numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
            own = best.runs[0].settings.get(key)
            if own in numbers and (edge := Edge.find(key, own, numbers)) is not None:
                found.append(edge.describe(name))
        return found

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


BETTER, INCONCLUSIVE, NOT_COMPARABLE = "better", "inconclusive", "not comparable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one group.

    Attributes:
        task: of the group.
        data: of the group.
        metric: key of the metric.
        outcome: ``better``, ``inconclusive`` or ``not comparable``.
        by: the compared factors.
        winner: the level that is better than each other one, such as an architecture; or None.
        reasons: why the runs are inconclusive.
        text: the verdict in words.
        commands: train more seeds: enough to decide between the two best, if the observed difference is real.
        price: the number of these runs, and their time.
    """

    task: str
    data: str
    metric: str
    by: tuple[str, ...]
    outcome: str
    winner: str | None
    reasons: tuple[str, ...]
    text: str
    commands: tuple[str, ...] = ()
    price: str = ""


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
    check_factors(_one_per_configuration(runs), by)
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
            tuple(by) or (choose_factor(_one_per_configuration(found), tuned),),
        )
        for key, found in members
    ]


def judge(group: Group) -> Verdict:
    """Finds the level of the compared factor, such as the architecture, that is significantly better than each other
    one.

    A winner needs three seeds of each level, fixed before the runs, and must win the ``PairTest`` against every
    other one. As all of these must hold at once, there is no correction for several tests: the probability of a false
    winner is about 5 %, at most 7 % for any spreads (tests/report/statistics/test_error_rates.py).
    """
    found = group.by_level()
    outcome, winner, reasons, price = NOT_COMPARABLE, None, list[str](), ""
    commands = tuple[str, ...]()
    if len(found) == 1:
        factors = find_factors(_one_per_configuration(group.runs))
        several = ", ".join(f"{factor.key} ({len(factor.levels)})" for factor in factors)
        text = f"All runs are {group.word(next(iter(found)))}: there is nothing to compare them with."
        if factors:
            text = f"Several settings differ: {several}. Choose what is compared, such as --by {factors[0].key}."
    elif group.not_comparable:
        text = f"Not comparable: {group.not_comparable}"
    else:
        chosen = {name: group.best(contenders) for name, contenders in found.items()}
        winner, reasons, text, more_seeds_help = _compare(group, chosen)
        text += _choice(found, chosen) + describe_raised_seeds([config.runs for config in chosen.values()])
        outcome = INCONCLUSIVE if winner is None else BETTER
        if more_seeds_help and (seeds := _wanted_seeds(group, [*chosen.values()])):
            commands = tuple(_train_more(contender.runs[0], seeds) for contender in chosen.values())
            price = _price([*chosen.values()], seeds)
    if group.note:
        text += f" {group.note}"
    return Verdict(
        group.task, group.data, group.metric.key, group.by, outcome, winner, tuple(reasons), text, commands, price
    )


def _compare(group: Group, chosen: dict[str, ComparedConfig]) -> tuple[str | None, list[str], str, bool]:
    """The winner among one configuration per level, the reasons if there is none, the verdict in words, and
    whether more seeds could give a winner."""
    metric = group.metric
    samples = {name: group.sample(config) for name, config in chosen.items()}
    scale = group.scale([*samples.values()])
    learned = {name: scale.learned(sample) for name, sample in samples.items()}
    ranking = sorted(
        samples, key=lambda name: scale.sign * fmean(learned[name] or [-scale.sign * math.inf]), reverse=True
    )
    shown = " vs ".join(f"{group.word(name)} {show_mean(metric, samples[name], learned[name])}" for name in ranking)
    tests = {
        (one, other): PairTest.of(samples[one], samples[other], scale)
        for one in samples
        for other in samples
        if one != other
    }
    winners = [one for one in samples if all(tests[one, other].winner == 1 for other in samples if other != one)]
    best = winners[0] if winners else ranking[0]
    others = [name for name in ranking if name != best]
    lead = [
        _lead(metric, tests[best, name], [len(samples[x].values) for x in (best, name)], group.word(name))
        for name in others
    ]
    said = f"{shown}; {group.word(best)} {', '.join(filter(None, lead))}" if any(lead) else shown
    reasons = list(dict.fromkeys(reason for name in others for reason in tests[best, name].reasons))
    tried = group.num_tried()
    if len({*tried.values()}) > 1:
        numbers = " and ".join(f"{count} of {group.word(name)}" for name, count in tried.items())
        reasons.append(f"unequal numbers of configurations were tried: {numbers}")
    if differing := group.differing_settings([chosen[name].runs[0] for name in ranking]):
        values = [_values_of(key, [chosen[name].runs[0] for name in ranking]) for key in differing]
        more = f", and {counted(len(values) - MOST_IN_LABELS, 'other')}" if len(values) > MOST_IN_LABELS else ""
        reasons.append(f"the runs also differ in {'; '.join(values[:MOST_IN_LABELS])}{more}")
    if winners:
        found = group.by_level()
        reasons += [edge for name in others for edge in group.edges(found[name])]
    if winners and not reasons:
        return best, [], f"{said}: {group.word(best)} is better.", False
    more_seeds_help = (
        not differing and len({*tried.values()}) == 1 and all(tests[best, name].more_seeds_help for name in others)
    )
    reasons = reasons or list(dict.fromkeys(tests[best, x].doubt for x in others if tests[best, x].winner != 1))
    return None, reasons, f"{said}: inconclusive, because {'; '.join(reasons)}.", more_seeds_help


def _values_of(key: str, runs: Sequence[RecordedRun]) -> str:
    values = dict.fromkeys(setting(run.settings.get(key, "absent")) for run in runs if run.settings)
    return f"{key} ({', '.join(values)})"


def show_mean(metric: MetricSpec, sample: Sample, learned: Sequence[float]) -> str:
    """The mean over the seeds that learned, in words, with the number of seeds."""
    count, total = len(learned), len(sample.values)
    if not learned:
        return f"0 of {counted(total, 'run')} learned"
    failed = "" if count == total else f"; {total - count} of {total} runs failed"
    return f"{metric.show(fmean(learned))} ({counted(count, 'seed')}{failed})"


def _lead(metric: MetricSpec, test: PairTest, totals: Sequence[int], other: str) -> str:
    """How far the first of two variants is ahead of the second; empty if nothing was tested."""
    said = []
    (first, second), (all_first, all_second) = test.learned, totals
    if first * all_second != second * all_first:
        said.append(
            f"learned in {first} of {all_first} runs, {other} in {second} of {all_second} (p = {test.p_learned:.2g})"
        )
    if test.welch is not None:
        sign = 1 if metric.higher_is_better else -1
        ahead = sign * test.welch.difference
        low, high = sorted(sign * end for end in test.welch.interval)
        interval = (
            f"95 % interval {metric.show_difference(low, high)}" if math.isfinite(low) else "no spread over seeds"
        )
        place = "ahead of" if ahead >= 0 else "behind"
        said.append(f"is {metric.show_difference(abs(ahead))} {place} {other} ({interval})")
    return " and ".join(said)


def _wanted_seeds(group: Group, chosen: Sequence[ComparedConfig]) -> int:
    """The number of seeds that would probably give a winner; 0 if 100 are too few, or for a study, which
    computes its own number."""
    values = [[group.value(run) for run in contender.runs] for contender in chosen]
    is_known = all(math.isfinite(value) for found in values for value in found)
    if not is_known or chosen[0].runs[0].variant:
        return 0
    tried = min(map(len, values))
    if tried == 1:
        return MIN_SEEDS
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


def _choice(found: dict[str, list[ComparedConfig]], chosen: dict[str, ComparedConfig]) -> str:
    """Which configurations were compared, if a level has several."""
    said = [
        f"{chosen[name].level} with {chosen[name].label} (of {len(contenders)} configurations)"
        for name, contenders in found.items()
        if len(contenders) > 1
    ]
    return f" Selected on the validation set: {'; '.join(said)}." if said else ""


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


def _one_per_configuration(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    return [*{_configuration(run): run for run in reversed(runs)}.values()][::-1]


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
