"""The comparison as one self-contained HTML page."""

import json
import math
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from statistics import fmean

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from triptych.report.page.assets import LOGO, SCRIPT, STYLE, glyph
from triptych.report.page.attention import attention_charts
from triptych.report.page.charts import (
    Figure,
    Switch,
    confusion_charts,
    cost_chart,
    length_chart,
    loss_chart,
    result_chart,
    validation_chart,
)
from triptych.report.page.examples import Shown, by_length, chosen_runs, telling_examples
from triptych.report.records import ARCHITECTURES, Run, RunSet
from triptych.report.statistics.standings import Duel, Standing
from triptych.report.statistics.verdicts import Contender, Difference, Group, Verdict
from triptych.report.wording import amount, duration, field_name, setting
from triptych.tasks.scores import Score

_MAX_SAMPLES = 12
CHART = '<div class="chart"'
"""How the place of a chart begins."""
TITLE_HEIGHT = 30
"""Of a chart's title, which is above the chart, in pixels."""
_MEANINGS = {
    "full": "encoder-decoder: sees all of the input, writes from left to right",
    "encoder_only": "every token sees every token",
    "decoder_only": "a token sees what stands before it",
}
# With this policy the browser itself refuses any request to the network (but for plotly, where it is not inside).
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'unsafe-inline'"


def render_page(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    audits: Sequence[Sequence[Difference]],
    standings: Sequence[Sequence[Standing]],
    duels: Sequence[Sequence[Duel]],
    found: RunSet,
) -> str:
    """Build the page.

    Args:
        groups: the runs of each task.
        verdicts: one for each group.
        audits: one list for each group.
        standings: one list for each group.
        duels: one list for each group.
        found: says what is left out.

    Returns:
        the page's text, with everything it needs inside.
    """
    runs = [run for group in groups for run in group.runs]
    parts = list(zip(groups, verdicts, audits, strict=True))
    counted = f"{_count(len(runs), 'run')} of {_count(len(groups), 'task')}"
    present = [name for name in ARCHITECTURES if any(run.architecture == name for run in runs)]
    key = "".join(
        f'<div class="{name}">{glyph(name)}<span><b>{ARCHITECTURES[name]}</b><br>'
        f'<span class="soft">{_MEANINGS[name]}</span></span></div>'
        for name in present
    )
    body = f"""<header>
<div class="brand">{LOGO}<span>Triptych</span></div>
<h1>Which architecture does it better?</h1>
<p class="soft">{counted}, on the test set, read once after training.</p>
<div class="key">{key}</div>
</header>
<main>
<div class="verdicts">{"".join(_verdict(index, *part) for index, part in enumerate(parts))}</div>
{_left_out(found)}
{"".join(map(_section, range(len(groups)), groups, audits, standings, duels))}
</main>"""
    return render_document(f"Triptych: comparison of {counted}", body)


def render_document(title: str, body: str, form_action: str = "'none'", plotly: str = "") -> str:
    """A page with the style, and the script that draws the charts in it.

    Args:
        title: of the window.
        body: HTML, with charts of ``render_chart``.
        form_action: where its forms may go, as a source of the content security policy.
        plotly: where plotly is served beside the page; empty: it is inside the page.

    Returns:
        the page's text, with everything it needs inside.
    """
    library = f'<script src="{plotly}"></script>' if plotly else f"<script>{get_plotlyjs()}</script>"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}{" 'self'" if plotly else ""}; form-action {form_action}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<noscript><p class="notice">The charts need JavaScript; the numbers are in the tables.</p></noscript>
{library if CHART in body else ""}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _verdict(index: int, group: Group, verdict: Verdict, audit: Sequence[Difference]) -> str:
    winner = f'<span class="badge won">{ARCHITECTURES[verdict.winner]} wins</span>' if verdict.winner else ""
    badges = winner or '<span class="badge">no winner</span>'
    if audit:
        said = f"{_count(len(audit), 'difference')} besides the architecture"
        badges += f'<a class="badge differs" href="#audit-{index}">{said}</a>'
    return (
        f'<div class="verdict {verdict.winner or ""}"><div><b>{_title(group)}</b>'
        f'<span class="soft">{group.metric.title}, {group.metric.direction}</span></div>'
        f'<div>{escape(verdict.text)}<div class="badges">{badges}</div></div></div>'
    )


def _left_out(found: RunSet) -> str:
    kinds = {"not finished (no summary.json)": found.unfinished, "damaged": found.damaged}
    count = found.num_untested
    untested = f'<p class="notice">Left out, as trials of a search, which do not test: {count}</p>' if count else ""
    return untested + "".join(
        f'<p class="notice">Left out, as {why}: {", ".join(f"<code>{escape(name)}</code>" for name in names)}</p>'
        for why, names in kinds.items()
        if names
    )


def _section(
    index: int, group: Group, audit: Sequence[Difference], standings: Sequence[Standing], duels: Sequence[Duel]
) -> str:
    cards = "".join(_card(group, contender) for contender in group.contenders)
    lengths = by_length(group)
    switches = [
        loss_chart(group),
        validation_chart(group),
        cost_chart(group),
        {"": length_chart(group, lengths)} if lengths else {},
        confusion_charts(list(chosen_runs(group).values())),
    ]
    attention = attention_charts(list(chosen_runs(group).values()))
    return f"""<section>
<h2>{_title(group)}</h2>
<div class="runs">{cards}</div>
{render_chart(result_chart(group))}
{_luck(group)}
{_standing_table(group.metric, standings)}
{_duel_table(group.metric, duels)}
<div class="charts">{"".join(render_switch(switch) for switch in switches if switch)}</div>
<div class="panel"><h3>Runs</h3>{_run_table(group)}</div>
{render_switch(attention) if attention else ""}
{_samples(group)}
<div class="panel" id="audit-{index}"><h3>Audit: what differs besides the architecture</h3>{_audit(audit)}</div>
{_reproduction(group.runs)}
</section>
"""


def _luck(group: Group) -> str:
    """What a value beyond the optimum means, where there is one."""
    metric = group.metric
    pairs = [(group.value(run), group.optimum(run)) for run in group.runs]
    if not any(best is not None and math.isfinite(x) and metric.is_beyond(x, best) for x, best in pairs):
        return ""
    return (
        f'<p class="soft">The {metric.optimum_name} is what the best possible guesser scores in expectation; on one '
        "test set a model can be a little luckier, and stand beyond it.</p>"
    )


def _card(group: Group, contender: Contender) -> str:
    runs, first = contender.runs, contender.runs[0]
    metric = group.metric
    values = [group.value(run) for run in runs if math.isfinite(group.value(run))]
    if not values:
        number, gap = "no finite value", ""
    else:
        number = metric.show(fmean(values))
        optimum = group.optimum(first)
        gap = "" if optimum is None else metric.show_gap(fmean(values), optimum)
    seeds = f"seed {first.seed}"
    if len(runs) > 1:
        spread = f", {metric.show(min(values))} to {metric.show(max(values))}" if values else ""
        seeds = f"mean of {len(values)} of {len(runs)} runs{spread}"
    layers = " + ".join(f"{count} {stack}" for stack, count in first.num_layers.items() if count)
    number, _, unit = number.partition(" ")
    return (
        f'<div class="run {first.architecture}"><header>{ARCHITECTURES[first.architecture]}{glyph(first.architecture)}'
        f'</header><div class="big">{number} <small>{unit}</small></div><div class="gap">{gap}</div>'
        f'<div class="soft">{escape(contender.label)}</div><div class="soft">{seeds}</div>'
        f'<div class="soft">{amount(first.params)} parameters, {escape(layers)} layers</div></div>'
    )


def render_chart(figure: Figure) -> str:
    """A panel with a chart.

    Args:
        figure: of plotly, as plain data; its layout has a height.
    """
    return render_switch({"": figure})


def render_switch(figures: Switch) -> str:
    """A panel with a chart, buttons that choose which of the figures it shows, and its data as a table.

    Args:
        figures: of plotly, as plain data, by the names of their buttons; the first is shown.
    """
    drawn = {name: _with_title_apart(figure) for name, figure in figures.items()}
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    height = max(figure["layout"]["height"] for figure in drawn.values())
    first = next(iter(drawn.values()))
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(i == 0).lower()}">{escape(name)}</button>'
        for i, name in enumerate(figures)
    )
    switch = f'<div class="switch" role="group" aria-label="what is shown">{buttons}</div>' if len(figures) > 1 else ""
    return (
        f'<div class="panel">{switch}<h3 class="title">{first["title"]}</h3><p class="says soft">{first["says"]}</p>'
        '<div class="legend" role="group" aria-label="what is drawn"></div>'
        f'{CHART} style="height:{height}px"></div><script type="application/json">{data}</script>'
        '<details class="data"><summary>Data</summary></details></div>'
    )


def _with_title_apart(figure: Figure) -> Figure:
    """A figure whose title is none of plotly's, which would not break its lines where the page is narrow."""
    layout = dict(figure["layout"])
    title = layout.pop("title")
    layout["height"] -= TITLE_HEIGHT
    layout["margin"] = {**layout["margin"], "t": layout["margin"]["t"] - TITLE_HEIGHT}
    says = title.get("subtitle", {}).get("text", "")
    return {"title": title["text"], "says": says, "data": figure["data"], "layout": layout}


def _standing_table(metric: Score, standings: Sequence[Standing]) -> str:
    """Each configuration over its seeds."""
    if all(len(standing.seeds) < 2 for standing in standings):
        return ""
    rows = []
    for standing in standings:
        several = len(standing.seeds) > 1
        spread = metric.show_difference(standing.deviation) if several else ""
        interval = f"{metric.show(standing.low)} to {metric.show(standing.high)}" if several else "one seed"
        rows.append(
            [
                ("Configuration", f"own {standing.architecture}", standing.name),
                ("Seeds", "number", ", ".join(map(str, standing.seeds))),
                (f"Mean {metric.title}", "number", metric.show(standing.mean) if standing.seeds else "not finite"),
                ("Deviation", "number", spread),
                ("95 % interval of the mean", "number", interval),
            ]
        )
    return f'<div class="panel"><h3>Over seeds</h3>{_table(rows)}</div>'


def _duel_table(metric: Score, duels: Sequence[Duel]) -> str:
    """Each two architectures: their difference over seeds, and over test examples."""
    rows = []
    for duel in duels:
        if not math.isfinite(duel.difference):
            continue
        seeds, examples = "one seed", "not known"
        if math.isfinite(duel.low):
            seeds = metric.show_difference(duel.low, duel.high)
        if duel.paired is not None:
            examples = f"{metric.show_difference(duel.paired.low, duel.paired.high)} (p = {duel.paired.p:.3f})"
        rows.append(
            [
                ("Difference", "words", f"{duel.first} less {duel.second}"),
                (metric.title, "number", metric.show_difference(duel.difference)),
                ("95 % over seeds (Welch)", "number", seeds),
                ("95 % over test examples (paired bootstrap)", "number", examples),
            ]
        )
    note = "Over seeds: of another training. Over test examples: of these very weights on another test set, no more."
    return f'<div class="panel"><h3>Differences</h3>{_table(rows)}<p class="soft">{note}</p></div>' if rows else ""


def _table(rows: Sequence[Sequence[tuple[str, str, str]]]) -> str:
    """A table of cells (head, class, text), the heads being those of the first row."""
    heads = "".join(f'<th class="{kind.partition(" ")[0]}">{escape(name)}</th>' for name, kind, _ in rows[0])
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{escape(cell)}</td>' for _, kind, cell in cells) + "</tr>"
        for cells in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _run_table(group: Group) -> str:
    """A table whose columns have a class each: own (the architecture's colour), number, words or path. What was varied
    has a column each."""
    best = group.metric.optimum_name
    has_best = any(group.optimum(run) is not None for run in group.runs)
    rows = []
    for run in group.runs:
        value, optimum = group.value(run), group.optimum(run)
        finite = math.isfinite(value)
        gap = group.metric.show_gap(value, optimum) if finite and optimum is not None else ""
        rows.append(
            [
                ("Architecture", f"own {run.architecture}", ARCHITECTURES[run.architecture]),
                *((name, "number", setting(run.settings.get(key))) for name, key in group.varied.items()),
                ("Seed", "number", str(run.seed)),
                (group.metric.title, "number", group.metric.show(value) if finite else "not finite"),
                *([(f"To the {best}", "words", gap.removesuffix(f" the {best}"))] if has_best else []),
                ("Parameters", "number", amount(run.params)),
                ("Non-embedding", "number", amount(run.non_embedding_params)),
                ("Updates", "number", f"{run.updates:,}"),
                ("Tokens", "number", amount(run.train_tokens)),
                ("Operations", "number", amount(run.train_flops)),
                ("Time", "number", duration(run.wall_time_s)),
                ("Tokens/s", "number", amount(run.tokens_per_s)),
                ("Run", "path", run.directory),
            ]
        )
    return _table(rows)


def _samples(group: Group) -> str:
    """What the runs have recorded of the first test examples, and the examples that tell most."""
    runs = chosen_runs(group)
    outputs: dict[tuple[str, str], dict[str, str]] = {}
    for name, run in runs.items():
        for sample in run.samples:
            outputs.setdefault((sample["input"], sample["reference"]), {})[name] = sample["output"]
    first = [Shown(given, reference, answers) for (given, reference), answers in outputs.items()][:_MAX_SAMPLES]
    tables = {"Samples": first, **telling_examples(group)}
    seeds = ", ".join(f"{ARCHITECTURES[name]} seed {run.seed}" for name, run in runs.items())
    return "".join(
        f'<div class="panel"><h3>{title} <span class="soft">({seeds}{_sorted_by(title, group)})</span></h3>'
        f"{_outputs(shown, runs, group)}</div>"
        for title, shown in tables.items()
        if shown
    )


def _sorted_by(title: str, group: Group) -> str:
    """By what examples were chosen."""
    by = group.runs[0].task_facts.ranked_by_title or group.metric.title
    return "" if title == "Samples" else f"; by {by}"


def _outputs(examples: Sequence[Shown], runs: Mapping[str, Run], group: Group) -> str:
    """Examples with the answers of all architectures side by side."""
    has_reference = any(shown.reference for shown in examples)
    heads = "<th>reference</th>" if has_reference else ""
    heads += "".join(f'<th class="own {name}">{ARCHITECTURES[name]}</th>' for name in runs)
    rows = []
    for shown in examples:
        answers = {name: _answer(shown.outputs.get(name), shown.reference, group) for name in runs}
        cells = "".join(
            f'<td class="sample" data-label="{ARCHITECTURES[name]}">{answer}</td>' for name, answer in answers.items()
        )
        if has_reference:
            right = f'<span dir="auto">{escape(shown.reference)}</span>'
            cells = f'<td class="sample" data-label="reference">{right}</td>{cells}'
        rows.append(
            f'<tr><td class="sample" data-label="input"><span dir="auto">{escape(shown.given)}</span></td>{cells}</tr>'
        )
    return (
        f'<table class="samples stack"><thead><tr><th>input</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _answer(output: str | None, reference: str, group: Group) -> str:
    """An output, marked where the task has one right answer: as right, or as wrong with the differing characters."""
    if output is None:
        return '<span class="soft">no sample</span>'
    if not group.metric.is_of_right_answers:  # many translations of a sentence are right
        return f'<span dir="auto">{escape(output)}</span>'
    if output == reference:
        return f'<span class="right" dir="auto">{escape(output)}</span>'
    marked = escape(output)
    if group.runs[0].task_facts.writes_text:
        blocks = SequenceMatcher(None, reference, output, autojunk=False).get_opcodes()
        pieces = [(kind, escape(output[start:end])) for kind, _, _, start, end in blocks if start < end]
        marked = "".join(piece if kind == "equal" else f"<mark>{piece}</mark>" for kind, piece in pieces)
    return f'<span class="wrong" dir="auto" title="differs from the reference">{marked or "(empty)"}</span>'


def _audit(audit: Sequence[Difference]) -> str:
    if not audit:
        return '<p class="soft">Nothing: same data, tokenizer, budget (within 2 %), precision, code and machine.</p>'
    entries = []
    for difference in audit:
        runs_by_value: dict[str, list[str]] = {}
        for run, value in difference.values.items():
            runs_by_value.setdefault(_short(difference.field, value), []).append(run)
        values = "".join(
            f"<li><code>{escape(value)}</code>{escape(', '.join(runs)) if len(runs) <= 3 else f'{len(runs)} runs'}</li>"
            for value, runs in runs_by_value.items()
        )
        entries.append(f"<dt>{field_name(difference.field)}</dt><dd>{escape(difference.text)}<ul>{values}</ul></dd>")
    return f"<dl>{''.join(entries)}</dl>"


def _short(field: str, value: object) -> str:
    if field.endswith("sha256") or field == "git_commit":
        return str(value)[:12] if value else "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return amount(value) if isinstance(value, int | float) else str(value)


def _counts(too_long: Mapping[str, str | int]) -> list[int]:
    return [count for count in too_long.values() if isinstance(count, int)]


def _reproduction(runs: Sequence[Run]) -> str:
    entries = []
    for run in runs:
        commit = f"git checkout {run.git_commit}\n" if run.git_commit else ""
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        hashes = (
            f"data {run.data_sha256[:12]}, tokenizer {run.tokenizer_sha256[:12]}, weights {run.weights_sha256[:12]}"
        )
        too_long = f"; too long: {_short('too_long', run.too_long)}" if any(_counts(run.too_long)) else ""
        facts = f"{run.tested_weights} weights tested; {versions}; {run.hardware}; {run.precision}; {hashes}{too_long}"
        settings = "\n".join(f"{key}={'null' if value is None else value}" for key, value in run.settings.items())
        configuration = f"<details class=data><summary>Configuration</summary><pre>{escape(settings)}</pre></details>"
        entries.append(
            f"<div><b>{escape(run.directory)}</b> <span class=soft>{escape(facts)}</span>"
            f"<pre>{escape(commit + run.command)}</pre>{configuration if settings else ''}</div>"
        )
    return f'<details class="panel"><summary>How to reproduce</summary>{"".join(entries)}</details>'


def _title(group: Group) -> str:
    return f"{escape(group.runs[0].task_facts.title)} · {escape(group.data)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
