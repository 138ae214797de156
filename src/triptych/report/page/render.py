"""The comparison as one self-contained HTML page, with the layout of ``templates/report.html``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from statistics import fmean
from typing import NamedTuple

from triptych.config import amount, counted, duration
from triptych.data.overlap import describe_overlap
from triptych.report.labels import COSTS, field_name, setting
from triptych.report.page.attention_charts import compare_attention
from triptych.report.page.charts import PLOTS, Plot, draw_results
from triptych.report.page.document import Cell, render_template
from triptych.report.page.examples import ShownExample, choose_runs, find_telling_examples
from triptych.report.page.pair_table import PairTable
from triptych.report.page.style import ARCHITECTURES, Figure
from triptych.report.read_records import RecordedRun, RunSet
from triptych.report.statistics.audit import Difference
from triptych.report.statistics.caveats import find_caveats
from triptych.report.statistics.factors import MODEL, Factor, level_of, value_of
from triptych.report.statistics.groups import ComparedConfig, Group
from triptych.report.statistics.pair_test import Sample
from triptych.report.statistics.reach import reach
from triptych.report.statistics.significance import FALSE_WINNER
from triptych.report.statistics.standings import PairDifference, SeedSummary, describe_training
from triptych.report.statistics.verdicts import Verdict
from triptych.tasks.metric_specs import MetricSpec

_MAX_SAMPLES = 12


class Panel(NamedTuple):
    """A finding of a study.

    Attributes:
        statement: the prediction.
        rationale: the reason for it.
        text: the result.
        outcome: ``as predicted``, ``not as predicted`` or ``inconclusive``; empty: what was tuned.
        command: trains enough seeds to decide it; may be empty.
        figure: a chart of it.
    """

    statement: str
    rationale: str
    text: str
    outcome: str
    command: str
    figure: Figure


class MarkedOutput(NamedTuple):
    """An output with its differences from the reference.

    Attributes:
        mark: ``right`` or ``wrong``; empty if the task has several correct outputs.
        pieces: of the text, each with whether it differs from the reference.
    """

    mark: str
    pieces: list[tuple[str, bool]]


def render_page(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict | None],
    audits: Sequence[Sequence[Difference]],
    standings: Sequence[Sequence[SeedSummary]],
    duels: Sequence[Sequence[PairDifference]],
    found: RunSet,
    plots: Sequence[Plot] = (),
    question: str = "",
    findings: Sequence[Panel] = (),
    answer: str = "",
    pairs: Sequence[PairTable] = (),
) -> str:
    """Builds the self-contained page.

    Args:
        audits: one list per group; so are ``standings`` and ``duels``.
        found: lists what is left out.
        plots: plots to add.
        question: of a study, at the top of the page, with its answer.
        findings: of the study, in place of verdicts.
        pairs: the heat maps of minimal pairs.
    """
    present = {run.architecture for group in groups for run in group.runs}
    compared = {_describe_compared(group) for group in groups}
    context = {
        "question": question or f"Which {compared.pop() if len(compared) == 1 else 'variant'} is better?",
        "answer": answer,
        "pairs": pairs,
        "findings": findings,
        "num_runs": sum(len(group.runs) for group in groups),
        "architectures": ARCHITECTURES,
        "present": [name for name in ARCHITECTURES if name in present and all(x.by == (MODEL,) for x in groups)],
        "sections": [
            _describe_section(*of_one, (*PLOTS, *plots))
            for of_one in zip(groups, verdicts, audits, standings, duels, strict=True)
        ],
        "false_winner": FALSE_WINNER,
        "found": found,
        "has_charts": True,
    }
    return render_template("report.html", context)


def _describe_section(
    group: Group,
    verdict: Verdict | None,
    audit: Sequence[Difference],
    standings: Sequence[SeedSummary],
    duels: Sequence[PairDifference],
    plots: Sequence[Plot],
) -> dict[str, object]:
    """The content of the page for one task."""
    shown = group.strongest
    chosen = choose_runs(shown)
    return {
        "title": f"{group.runs[0].task_info.title} · {group.data}",
        "metric": group.metric,
        "verdict": verdict,
        "cards": [_describe_contender(shown, contender) for contender in shown.contenders],
        "results": {"": draw_results(shown)},
        "num_hidden": len(group.contenders) - len(shown.contenders),
        "caveats": find_caveats(group),
        "is_beyond_optimum": _is_beyond_optimum(group),
        "compared": _describe_compared(group),
        "factors": [*_tabulate_factors(group)],
        "standings": [*_tabulate_standings(group, standings)],
        "training": [[Cell(k.capitalize(), "words", x) for k, x in row.items()] for row in describe_training(group)],
        "has_costs": reach(group) is not None,
        "duels": [*_tabulate_duels(group.metric, duels)],
        "charts": [figures for plot in plots if (figures := plot(shown))],
        "runs": [*_tabulate_runs(group)],
        "attention": compare_attention(
            {group.word(level): run for level, run in chosen.items()},
            {group.word(level): style for level, style in shown.styles.items()},
        ),
        "words": {level: group.word(level) for level in group.by_level},
        "kinds": group.styles,
        "chosen": ", ".join(f"{group.word(name)} seed {run.seed}" for name, run in chosen.items()),
        "samples": _compare_samples(shown, chosen),
        "audit": [describe_difference(difference) for difference in audit],
        "origins": [describe_origin(run, group.runs[0]) for run in group.runs],
    }


def _is_beyond_optimum(group: Group) -> bool:
    """Whether a run exceeds the expected score of the Bayes-optimal predictor, which the page then explains."""
    pairs = [(group.value(run), group.optimum(run)) for run in group.runs]
    return any(best is not None and math.isfinite(x) and group.metric.is_beyond(x, best) for x, best in pairs)


def _describe_contender(group: Group, contender: ComparedConfig) -> dict[str, str]:
    runs, first = contender.runs, contender.runs[0]
    metric = group.metric
    values = [group.value(run) for run in runs if math.isfinite(group.value(run))]
    number, gap, optimum = "no finite value", "", group.optimum(first)
    if values:
        number = group.show(first, fmean(values))
        gap = "" if optimum is None else metric.show_gap(fmean(values), optimum)
    seeds = f"seed {first.seed}"
    if len(runs) > 1:
        spread = f", {group.show(first, min(values))} to {group.show(first, max(values))}" if values else ""
        learned = group.scale([*group.samples.values()]).learned(Sample("", tuple(values), ()))
        failed = f", {len(runs) - len(learned)} failed" if len(learned) < len(runs) else ""
        seeds = f"mean of {counted(len(values), 'run')}{spread}{failed}"
    layers = " + ".join(f"{count} {stack}" for stack, count in first.num_layers.items() if count)
    value, _, unit = number.partition(" ")
    return {
        "architecture": first.architecture if group.by == (MODEL,) else "",
        "kind": contender.style,
        "level": contender.level,
        "value": value,
        "unit": unit,
        "gap": gap,
        "label": contender.label,
        "seeds": seeds,
        "size": f"{amount(first.params)} parameters, {layers} layers",
    }


def _describe_compared(group: Group) -> str:
    if len(group.by) > 1:
        return f"combination of {' and '.join(group.by)}"
    return "architecture" if group.by == (MODEL,) else group.by[0]


def _tabulate_factors(group: Group) -> Iterator[list[Cell]]:
    """The settings that differ, with their roles; empty if none does, except for the compared one."""
    seeds = Factor("seed", tuple(str(seed) for seed in sorted({run.seed for run in group.runs})), "replicate")
    for factor in (*group.factors, seeds) if len(group.factors) > 1 else ():
        levels = ", ".join(factor.levels)
        yield [Cell("Setting", "words", factor.key), Cell("Role", "words", factor.role), Cell("Values", "path", levels)]


def _tabulate_standings(group: Group, standings: Sequence[SeedSummary]) -> Iterator[list[Cell]]:
    """Each configuration over its seeds, and its cost to reach the target score; empty with one run."""
    if len(group.runs) == 1:
        return
    metric, reached = group.metric, reach(group)
    target = metric.show(reached.target) if reached else ""
    for standing, contender in zip(standings, group.contenders, strict=True):
        several = len(standing.seeds) > 1
        spread = metric.show_difference(standing.deviation) if several else ""
        interval = f"{metric.show(standing.low)} to {metric.show(standing.high)}" if several else "one seed"
        mean = group.show(contender.runs[0], standing.mean) if standing.seeds else "not finite"
        costs = reached.costs[standing.name] if reached else {}
        units = {clock: f"{COSTS[clock][0].upper()}{COSTS[clock][1:]}" for clock in costs}
        yield [
            Cell("Configuration", f"own {contender.style}", standing.name),
            Cell("Seeds", "number", ", ".join(map(str, standing.seeds))),
            Cell(f"Mean {metric.title}", "number", mean),
            Cell("Deviation", "number", spread),
            Cell("95 % interval of the mean", "number", interval),
            *(Cell(f"{units[clock]} to {target}", "number", amount(cost)) for clock, cost in costs.items()),
        ]


def _tabulate_duels(metric: MetricSpec, duels: Sequence[PairDifference]) -> Iterator[list[Cell]]:
    """Each pair of architectures: their difference over seeds, and over test examples."""
    for duel in duels:
        if not math.isfinite(duel.difference):
            continue
        seeds, examples = "one seed", "unknown"
        if math.isfinite(duel.low):
            seeds = metric.show_difference(duel.low, duel.high)
        if duel.paired is not None:
            examples = f"{metric.show_difference(duel.paired.low, duel.paired.high)} (p = {duel.paired.p:.3f})"
        yield [
            Cell("Difference", "words", f"{duel.first} minus {duel.second}"),
            *([Cell("Within", "words", duel.block)] if duel.block else []),
            Cell(metric.title, "number", metric.show_difference(duel.difference)),
            Cell("95 % over seeds (Welch)", "number", seeds),
            Cell("95 % over test examples (paired bootstrap)", "number", examples),
        ]


def _tabulate_runs(group: Group) -> Iterator[list[Cell]]:
    """Each run, with a column per varied setting."""
    best = group.metric.optimum_name
    has_best = any(group.optimum(run) is not None for run in group.runs)
    for run in group.runs:
        value, optimum = group.value(run), group.optimum(run)
        finite = math.isfinite(value)
        gap = group.metric.show_gap(value, optimum) if finite and optimum is not None else ""
        yield [
            Cell("Architecture", f"own {group.styles[level_of(run, group.by)]}", ARCHITECTURES[run.architecture].word),
            *(Cell(name, "number", value_of(run, key)) for name, key in group.varied.items()),
            Cell("Seed", "number", str(run.seed)),
            Cell(group.metric.title, "number", group.show(run, value) if finite else "not finite"),
            *([Cell(f"To the {best}", "words", gap.removesuffix(f" the {best}"))] if has_best else []),
            Cell("Parameters", "number", amount(run.params)),
            Cell("Non-embedding", "number", amount(run.non_embedding_params)),
            Cell("Steps", "number", f"{run.steps:,}"),
            Cell("Tokens", "number", amount(run.train_tokens)),
            Cell("FLOPs", "number", amount(run.train_flops)),
            Cell("Time", "number", duration(run.wall_time_s)),
            Cell("Tokens/s", "number", amount(run.tokens_per_second)),
            Cell("Run", "path", run.directory),
        ]


def _compare_samples(group: Group, runs: Mapping[str, RecordedRun]) -> list[dict[str, object]]:
    """Recorded predictions for the first test examples, and the most informative examples, each with the outputs of all
    architectures side by side."""
    shown: dict[tuple[str, ...], ShownExample] = {}
    for name, run in runs.items():
        for sample in run.samples:
            given = sample["input"], sample["reference"], sample.get("image", ""), sample.get("reference_image", "")
            example = shown.setdefault(given, ShownExample(*given))
            example.outputs[name] = sample["output"]
            if "output_image" in sample:
                example.pictures[name] = sample["output_image"]
    first = [*shown.values()][:_MAX_SAMPLES]
    criterion = group.runs[0].task_info.ranked_by_title or group.metric.title
    return [
        {
            "title": title,
            "criterion": "" if examples is first else criterion,
            "has_reference": any(example.reference or example.reference_picture for example in examples),
            "levels": [*runs],
            "rows": [
                (example, {name: _mark_output(example.outputs.get(name), example.reference, group) for name in runs})
                for example in examples
            ],
        }
        for title, examples in {"Samples": first, **find_telling_examples(group)}.items()
        if examples
    ]


def _mark_output(output: str | None, reference: str, group: Group) -> MarkedOutput | None:
    """An output; if the task has one correct output, marked as right, or as wrong with the differing characters."""
    if output is None:
        return None
    whole = [(output, False)] if output else []
    if not group.metric.is_of_right_answers:  # many translations of a sentence are right
        return MarkedOutput("", whole)
    if output == reference:
        return MarkedOutput("right", whole)
    if not group.runs[0].task_info.generates_text:
        return MarkedOutput("wrong", whole)
    blocks = SequenceMatcher(None, reference, output, autojunk=False).get_opcodes()
    pieces = [(output[start:end], kind != "equal") for kind, _, _, start, end in blocks if start < end]
    return MarkedOutput("wrong", pieces)


def describe_difference(difference: Difference) -> dict[str, object]:
    runs_by_value: dict[str, list[str]] = {}
    for run, value in difference.values.items():
        runs_by_value.setdefault(_shorten(difference.field, value), []).append(run)
    return {"field": field_name(difference.field), "text": difference.text, "runs_by_value": runs_by_value}


def _shorten(field: str, value: object) -> str:
    if field.endswith("sha256") or field == "git_commit":
        return str(value)[:12] if value else "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return amount(value) if isinstance(value, int | float) else str(value)


def describe_origin(run: RecordedRun, first: RecordedRun) -> dict[str, str]:
    """How to reproduce a run; its settings if they differ from those of the first one."""
    commit = f"git checkout {run.git_commit}\n" if run.git_commit else ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    hashes = f"data {run.data_sha256[:12]}, tokenizer {run.tokenizer_sha256[:12]}, weights {run.weights_sha256[:12]}"
    is_any_too_long = any(count for count in run.too_long.values() if isinstance(count, int))
    too_long = f"; too long: {_shorten('too_long', run.too_long)}" if is_any_too_long else ""
    said = "" if run.overlap is None else describe_overlap(run.overlap)
    overlap = f"; overlap: {said}" if said else ""
    made_of = f"{versions}; {run.hardware}; {run.precision}; {hashes}{too_long}{overlap}"
    return {
        "directory": run.directory,
        "facts": f"{run.tested_weights} weights tested; {made_of}",
        "command": commit + run.command,
        "settings": "\n".join(
            f"{key}={setting(value)}"
            for key, value in run.settings.items()
            if run is first or first.settings.get(key, ...) != value
        ),
        "summary": "Configuration" if run is first else f"Settings that differ from those of {first.directory}",
    }
