"""Verdicts over seeds."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, groupby, permutations
from pathlib import Path
from statistics import fmean
from typing import Any

from triptych.config import counted, duration
from triptych.config.overrides import read_value, write_override
from triptych.report.labels import setting
from triptych.report.page.style import ARCHITECTURES
from triptych.report.read_records import PrunedRun, RecordedRun
from triptych.report.statistics.blocks import combine_blocks, interaction_p
from triptych.report.statistics.bootstrap import scored_by
from triptych.report.statistics.edges import Edge
from triptych.report.statistics.factors import (
    BLOCK,
    MODEL,
    Factor,
    check_factors,
    choose_factor,
    find_roles,
    level_of,
    setting_of,
    sort_runs,
)
from triptych.report.statistics.metrics import metric_key, primary_metric, validation_key
from triptych.report.statistics.pair_test import PairTest, Sample, Scale
from triptych.report.statistics.raised_seeds import describe_raised_seeds
from triptych.report.statistics.significance import (
    CONFIDENCE,
    MIN_SEEDS,
    adjust_by_holm,
    pool_deviations,
    seeds_to_decide,
)
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
            found[level] = Sample(contender.name, (*map(self.value, runs),), tuple(run.seed for run in runs), grain)
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

    @property
    def num_tried(self) -> dict[str, int]:
        """The number of configurations tried per level, tested or not."""
        count = {}
        for name in self.by_level:
            runs = [run for run in (*self.runs, *self.untested) if level_of(run, self.by) == name]
            known = [run.settings for run in runs]  # of a trial with several seeds, another may have been pruned
            pruned = [run.settings for run in self.pruned if level_of(run, self.by) == name]
            others = {str(settings) for settings in pruned if settings not in known}
            count[name] = len({_configuration(run) for run in runs}) + len(others)
        return count

    @property
    def tuned_settings(self) -> set[str]:
        """The settings that differ between the configurations tried of each level, tested or not, and ``tuned``."""
        tried = (*_one_per_configuration((*self.runs, *self.untested)), *self.pruned)
        of_levels = [[run for run in tried if level_of(run, self.by) == level] for level in self.by_level]
        return set.intersection(*({*_differing(runs).values()} for runs in of_levels)) | {*map(setting_of, self.tuned)}

    @property
    def counts_alike(self) -> bool:
        """Whether the FLOPs of all runs are counted alike; otherwise they cannot be compared."""
        return len({run.train_flops_of for run in self.runs}) == 1

    @property
    def contenders(self) -> list[ComparedConfig]:
        """All configurations."""
        return [contender for found in self.by_level.values() for contender in found]

    @property
    def varied(self) -> dict[str, str]:
        """The compared settings, and those that vary within a level, as in a sweep: short names, and their keys."""
        compared = [setting_of(key) for key in self.by if key != MODEL]
        first = [[c.runs[0] for c in contenders] for contenders in self.by_level.values()]
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
        others = [trial for trial in (*self.untested, *self.pruned) if level_of(trial, self.by) == level]
        for key in _differing([*tried, *others]).values():
            values = [run.settings.get(key) for run in (*tried, *others)]
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
        by_block: the winner of each block, if there is no verdict of the mean over blocks.
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
    by_block: dict[str, str | None] = field(default_factory=dict)


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
    groups = []
    for key, members in groupby(runs, key=lambda run: (run.task, run.data)):
        found = tuple(members)
        trials = tuple(run for run in untested if (run.task, run.data) == key)
        stopped = tuple(run for run in pruned if (run.task, run.data) == key)
        configurations = _one_per_configuration(found)
        own = tuple(by) or (choose_factor(configurations, tuned),)
        group = Group(*key, primary_metric(found), found, trials, stopped, own, tuned=tuple(tuned))
        factors = find_roles(configurations, own, [*tuned, *_searched(trials)])
        if any(run.variant or not run.settings for run in found):
            factors = factors[: len(own)]  # the claims of a study say what is compared
        groups.append(replace(group, runs=sort_runs(found, factors), factors=factors))
    return groups


def judge(group: Group) -> Verdict:
    """Finds the level of the compared factor, such as the architecture, that is significantly better than each other
    one.

    A winner needs three seeds of each level, fixed before the runs, and must win the ``PairTest`` against every
    other one. As all of these must hold at once, there is no correction for several tests: the probability of a false
    winner is about 5 %, at most 7 % for any spreads (tests/report/statistics/test_error_rates.py).

    With blocks, the mean difference over the blocks is tested. If a run failed, or the difference depends on the block,
    there is a verdict per block instead, with Holm's correction.
    """
    outcome, winner, reasons, price = NOT_COMPARABLE, None, list[str](), ""
    commands, by_block = tuple[str, ...](), dict[str, str | None]()
    blocks = group.shared_blocks
    if len(group.by_level) == 1:
        text = f"All runs are {group.word(next(iter(group.by_level)))}: there is nothing to compare them with."
        if others := group.factors[1:]:
            several = ", ".join(f"{factor.key} ({len(factor.levels)})" for factor in others)
            text = f"Several settings differ: {several}. Choose what is compared, such as --by {others[0].key}."
    elif not blocks:
        outcome, reasons = INCONCLUSIVE, [f"never side by side: {_missing(group)}"]
        text = f"Inconclusive, because {reasons[0]}."
    elif why := next(filter(None, (block.not_comparable for block in blocks.values())), ""):
        text = f"Not comparable: {why}"
    else:
        ranking = _rank(blocks)
        winner, reasons, text = ranking.conclude(ranking.p)
        if why := ranking.why_separate:
            separate = [_rank({label: block}) for label, block in blocks.items()]
            found = [*map(_Ranking.conclude, separate, adjust_by_holm([one.p for one in separate]))]
            by_block = {label: best for label, (best, *_) in zip(blocks, found, strict=True)}
            winner = found[0][0] if len({*by_block.values()}) == 1 else None
            reasons = [] if winner else [why]
            each = " ".join(f"{label}: {said}" for label, (*_, said) in zip(blocks, found, strict=True))
            text = f"no verdict, because {why}. {each}"
        if "" not in blocks:
            missing = f" Left out: {said}." if (said := _missing(group)) else ""
            text = f"{'Mean over' if len(blocks) > 1 else 'With'} {', '.join(blocks)}: {text}{missing}"
        compared = [contender.runs for block in blocks.values() for contender in block.chosen.values()]
        text += _choice(blocks) + describe_raised_seeds(compared)
        outcome = INCONCLUSIVE if winner is None else BETTER
        if not winner and not by_block and (seeds := ranking.wanted_seeds):
            chosen = [contender for block in blocks.values() for contender in block.chosen.values()]
            commands = tuple(_train_more(contender.runs[0], seeds) for contender in chosen)
            price = _price(chosen, seeds)
    if group.note:
        text += f" {group.note}"
    told = outcome, winner, tuple(reasons), text, commands, price, by_block
    return Verdict(group.task, group.data, group.metric.key, group.by, *told)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The levels of the compared factor, by their means.

    Attributes:
        best: the winner, otherwise the level with the best mean.
        claim: in words.
        said: the means and leads in words.
        p: of the claim; 1 if it is not ahead of each other level.
        reasons: why there is no winner, whatever p is.
        doubts: why p is not below 5 %.
        why_separate: why the mean over blocks has no verdict, but each block has one; otherwise empty.
        wanted_seeds: the number of seeds that would probably give a winner; 0 if unknown, or more are no help.
    """

    best: str
    claim: str
    said: str
    p: float
    reasons: list[str]
    doubts: list[str]
    why_separate: str
    wanted_seeds: int

    def conclude(self, p: float) -> tuple[str | None, list[str], str]:
        """The winner, the reasons if there is none, and the verdict in words; ``p`` may be corrected."""
        if not self.reasons and p < 1 - CONFIDENCE:
            return self.best, [], f"{self.said}: {self.claim}."
        reasons = self.reasons or self.doubts or ["p is not below 5 % after Holm's correction"]
        return None, reasons, f"{self.said}: inconclusive, because {'; '.join(reasons)}."


def _rank(blocks: Mapping[str, Group]) -> _Ranking:
    """Ranks the levels by the mean of the runs that learned, or by its mean over several blocks."""
    parts = [*blocks.values()]
    metric, word, levels = parts[0].metric, parts[0].word, [*parts[0].by_level]
    sign = 1 if metric.higher_is_better else -1
    means = {x: sign * fmean(fmean(part.learned[x] or [-sign * math.inf]) for part in parts) for x in levels}
    ranking = sorted(means, key=means.__getitem__, reverse=True)
    separate = {pair: [part.test(*pair) for part in parts] for pair in permutations(levels, 2)}
    tests = {pair: combine_blocks(found, sign) for pair, found in separate.items()}
    winners = [one for one in levels if all(tests[one, other].winner == 1 for other in levels if other != one)]
    best = (winners or ranking)[0]
    others = [level for level in ranking if level != best]
    cells = [[part.samples[x].values for part in parts] for x in levels]
    totals = {x: sum(map(len, found)) for x, found in zip(levels, cells, strict=True)}
    num_failed = sum(totals.values()) - sum(len(part.learned[x]) for part in parts for x in levels)
    shown = {x: show_mean(metric, [part.learned[x] for part in parts], totals[x]) for x in ranking}
    said = " vs ".join(f"{word(x)} {mean}" for x, mean in shown.items())
    lead = [_lead(metric, tests[best, x], [totals[best], totals[x]], word(x)) for x in others]
    if any(lead):
        said += f"; {word(best)} {', '.join(filter(None, lead))}"
    reasons: dict[str, list[str]] = {}
    differences = {label: _list_differences(block, ranking) for label, block in blocks.items()}
    for i, (label, block) in enumerate(blocks.items()):
        edges = [edge for x in others if winners for edge in block.edges(block.by_level[x])]
        for reason in [*(y for x in others for y in separate[best, x][i].reasons), *differences[label], *edges]:
            reasons.setdefault(reason, []).append(label)
    why = f"{num_failed} of {sum(totals.values())} runs failed" if len(parts) > 1 and num_failed else ""
    if len(parts) > 1 and not reasons and not why:
        of_blocks = interaction_p(cells, max(sample.grain for part in parts for sample in part.samples.values()))
        if of_blocks < 1 - CONFIDENCE:
            why = f"the difference depends on the block (F test of interaction, p = {of_blocks:.2g})"
    final = [tests[best, x] for x in others]
    helps = not any(differences.values()) and all(test.more_seeds_help for test in final)
    seeds = _wanted_seeds(parts) if helps else 0
    p = max(test.p if test.lead == 1 else 1.0 for test in final)
    told = [x if len(parts) == 1 else f"{x} ({', '.join(dict.fromkeys(found))})" for x, found in reasons.items()]
    doubts = [*dict.fromkeys(test.doubt for test in final if test.winner != 1)]
    return _Ranking(best, f"{word(best)} is better", said, p, told, doubts, why, seeds)


def _list_differences(group: Group, ranking: Sequence[str]) -> list[str]:
    """What differs in addition to the level, as reasons: numbers of trials, and settings."""
    found, tried = [], group.num_tried
    if len({*tried.values()}) > 1:
        numbers = " and ".join(f"{count} of {group.word(name)}" for name, count in tried.items())
        single = [one for one in group.contenders if len(one.runs) == 1]
        stray = f" ({single[0].runs[0].directory} is the only run of {single[0].name})" if len(single) == 1 else ""
        found.append(f"unequal numbers of configurations were tried: {numbers}{stray}")
    runs = [group.chosen[name].runs[0] for name in ranking]
    if values := [_values_of(key, runs) for key in group.differing_settings(runs)]:
        more = f", and {counted(len(values) - MOST_IN_LABELS, 'other')}" if len(values) > MOST_IN_LABELS else ""
        found.append(f"the runs also differ in {'; '.join(values[:MOST_IN_LABELS])}{more}")
    return found


def _missing(group: Group) -> str:
    """The blocks that lack runs of a level."""
    missing = {x: [y for y in group.by_level if y not in block.by_level] for x, block in group.blocks.items()}
    return "; ".join(f"{x} has no {' or '.join(map(group.word, found))} run" for x, found in missing.items() if found)


def _values_of(key: str, runs: Sequence[RecordedRun]) -> str:
    values = dict.fromkeys(setting(run.settings.get(key, "absent")) for run in runs if run.settings)
    return f"{key} ({', '.join(values)})"


def show_mean(metric: MetricSpec, learned: Sequence[Sequence[float]], total: int) -> str:
    """The mean over the seeds that learned, in words, with their number.

    Args:
        learned: the values, per block; the mean is over blocks.
        total: the number of runs, failed ones included.
    """
    count = sum(map(len, learned))
    if not all(learned):
        return f"{count} of {counted(total, 'run')} learned"
    failed = "" if count == total else f"; {total - count} of {total} runs failed"
    unit = "seed" if len(learned) == 1 else "run"
    return f"{metric.show(fmean(map(fmean, learned)))} ({counted(count, unit)}{failed})"


def _lead(metric: MetricSpec, test: PairTest, totals: Sequence[int], other: str) -> str:
    """How far the first of two variants is ahead of the second; empty if nothing was tested."""
    said = []
    (first, second), (m, n) = test.learned, totals
    if first * n != second * m:
        said.append(f"learned in {first} of {m} runs, {other} in {second} of {n} (p = {test.p_learned:.2g})")
    if test.welch is not None:
        sign = 1 if metric.higher_is_better else -1
        ahead = sign * test.welch.difference
        low, high = sorted(sign * end for end in test.welch.interval)
        span = f"95 % interval {metric.show_difference(low, high)}" if math.isfinite(low) else "no spread over seeds"
        place = "ahead of" if ahead >= 0 else "behind"
        said.append(f"is {metric.show_difference(abs(ahead))} {place} {other} ({span})")
    return " and ".join(said)


def _wanted_seeds(blocks: Sequence[Group]) -> int:
    """The number of seeds that would probably give a winner; 0 if 100 are too few."""
    values = [[block.samples[level].values for block in blocks] for level in blocks[0].samples]
    means = [fmean(map(fmean, found)) for found in values]
    if not all(map(math.isfinite, means)):
        return 0
    if (tried := min(len(seeds) for found in values for seeds in found)) == 1:
        return MIN_SEEDS
    first, second = sorted(range(len(means)), key=means.__getitem__, reverse=blocks[0].metric.higher_is_better)[:2]
    deviation = math.hypot(*map(pool_deviations, values[first], values[second])) / len(blocks)  # of the mean
    needed = seeds_to_decide(abs(means[first] - means[second]), deviation)
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


def _choice(blocks: Mapping[str, Group]) -> str:
    """Which configurations were compared, if a level has several."""
    said = [
        f"{f'{label}: ' if len(blocks) > 1 else ''}{config.level} with {config.label} (of {number} configurations)"
        for label, block in blocks.items()
        for level, config in block.chosen.items()
        if (number := len(block.by_level[level])) > 1
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


def _searched(trials: Sequence[RecordedRun]) -> set[str]:
    """The settings that differ between the trials of one search, whose directories have the same parent."""
    folders: dict[Path, list[RecordedRun]] = {}
    for trial in trials:
        folders.setdefault(Path(trial.directory).parent, []).append(trial)
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
    differing = list(_differing(runs).items())[:MOST_IN_LABELS]
    labels = [", ".join(f"{x}={run.settings[key]}" for x, key in differing if key in run.settings) for run in runs]
    if len(set(labels)) == len(runs):
        return labels
    info = [f"{run.experiment}, {run.params:,} parameters, {counted(run.steps, 'step')}" for run in runs]
    return [f"{label}, {fact}" if label else fact for label, fact in zip(labels, info, strict=True)]


def _differing(runs: Sequence[RecordedRun | PrunedRun]) -> dict[str, str]:
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
