"""Verdicts over seeds."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from statistics import fmean

from triptych.config import counted, duration
from triptych.config.overrides import read_value, write_override
from triptych.report.labels import setting
from triptych.report.read_records import RecordedRun
from triptych.report.statistics.blocks import combine_blocks, interaction_p
from triptych.report.statistics.factors import TUNED_KEYS
from triptych.report.statistics.groups import MOST_IN_LABELS, MOST_LEVELS, ComparedConfig, Group
from triptych.report.statistics.pair_test import PairTest
from triptych.report.statistics.raised_seeds import describe_raised_seeds
from triptych.report.statistics.significance import (
    CONFIDENCE,
    MIN_SEEDS,
    adjust_by_holm,
    pool_deviations,
    seeds_to_decide,
)
from triptych.tasks.metric_specs import MetricSpec

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

    @cache
    def test_in_blocks(one: str, other: str) -> list[PairTest]:
        return [part.test(one, other) for part in parts]

    @cache
    def test_pair(one: str, other: str) -> PairTest:
        return combine_blocks(test_in_blocks(one, other), sign)

    best = reduce(
        lambda one, other: other if test_pair(other, one).winner == 1 else one, ranking
    )  # the only possible winner
    has_winner = all(test_pair(best, other).winner == 1 for other in levels if other != best)
    best = best if has_winner else ranking[0]
    others = [level for level in ranking if level != best]
    totals = {x: sum(len(part.samples[x].values) for part in parts) for x in levels}
    shown = {
        x: show_mean(parts[0].metric_of(x), [part.learned[x] for part in parts], totals[x])
        for x in ranking[:MOST_LEVELS]
    }
    more = f" vs {len(ranking) - MOST_LEVELS} others" if len(ranking) > MOST_LEVELS else ""
    said = " vs ".join(f"{word(x)} {mean}" for x, mean in shown.items()) + more
    lead = [_lead(metric, test_pair(best, x), [totals[best], totals[x]], word(x)) for x in others if x in shown]
    if any(lead):
        said += f"; {word(best)} {', '.join(filter(None, lead))}"
    reasons: dict[str, list[str]] = {}
    differences = {label: _list_differences(block, ranking) for label, block in blocks.items()}
    for i, (label, block) in enumerate(blocks.items()):
        edges = [edge for x in others if has_winner for edge in block.edges(block.by_level[x])]
        for reason in [*(y for x in others for y in test_in_blocks(best, x)[i].reasons), *differences[label], *edges]:
            reasons.setdefault(reason, []).append(label)
    num_failed = sum(totals.values()) - sum(len(part.learned[x]) for part in parts for x in levels)
    why = f"{num_failed} of {sum(totals.values())} runs failed" if len(parts) > 1 and num_failed else ""
    if len(parts) > 1 and not reasons and not why:
        why = _describe_interaction(parts)
    final = [test_pair(best, x) for x in others]
    helps = not any(differences.values()) and not more and all(test.more_seeds_help for test in final)
    seeds = _wanted_seeds(parts) if helps else 0
    p = max(test.p if test.lead == 1 else 1.0 for test in final)
    told = [x if len(parts) == 1 else f"{x} ({', '.join(dict.fromkeys(found))})" for x, found in reasons.items()]
    doubts = [*dict.fromkeys(test.doubt for test in final if test.winner != 1)]
    return _Ranking(best, f"{word(best)} is better", said, p, told, doubts, why, seeds)


def _describe_interaction(blocks: Sequence[Group]) -> str:
    """That the difference depends on the block, if it does."""
    samples = [[block.samples[level] for block in blocks] for level in blocks[0].by_level]
    grain = max(sample.grain for of_level in samples for sample in of_level)
    p = interaction_p([[sample.values for sample in of_level] for of_level in samples], grain)
    return f"the difference depends on the block (F test of interaction, p = {p:.2g})" if p < 1 - CONFIDENCE else ""


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
        tuned = [key for key in group.differing_settings(runs) if key.startswith(TUNED_KEYS)][:1]
        hint = f" (if it was tuned for each: --tuned {tuned[0]})" if tuned else ""
        found.append(f"the runs also differ in {'; '.join(values[:MOST_IN_LABELS])}{more}{hint}")
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
