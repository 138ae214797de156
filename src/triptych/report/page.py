"""The comparison as one self-contained HTML page."""

import json
import math
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from statistics import fmean

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from triptych.report.assets import LOGO, SCRIPT, STYLE, glyph
from triptych.report.charts import Figure, loss_chart, result_chart, validation_chart
from triptych.report.metrics import BLEU
from triptych.report.records import ARCHITECTURES, Run
from triptych.report.verdicts import Difference, Group, Verdict
from triptych.report.wording import amount, duration

_MAX_SAMPLES = 12
_HAS_ONE_ANSWER = ("translation", "classification", "tagging")
_TASK_TITLES = {
    "translation": "Translation",
    "classification": "Classification",
    "tagging": "Tagging",
    "language_modeling": "Language modelling",
    "denoising": "Denoising",
}
_MEANINGS = {
    "full": "encoder-decoder: sees all of the input, writes from left to right",
    "encoder_only": "every token sees every token",
    "decoder_only": "a token sees what stands before it",
}
# With this policy the browser itself refuses any request to the network.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_page(
    groups: Sequence[Group],
    verdicts: Sequence[Verdict],
    audits: Sequence[Sequence[Difference]],
    unfinished: Sequence[str],
) -> str:
    """Build the page.

    Args:
        groups: the runs of each task.
        verdicts: one for each group.
        audits: one list for each group.
        unfinished: directories of unfinished runs.

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
{_unfinished(unfinished)}
{"".join(_section(index, group, audit) for index, (group, _, audit) in enumerate(parts))}
</main>"""
    return render_document(f"Triptych: comparison of {counted}", body)


def render_document(title: str, body: str) -> str:
    """A page with the style, and the script that draws the charts in it.

    Args:
        title: of the window.
        body: HTML, with charts of ``render_chart``.

    Returns:
        the page's text, with everything it needs inside.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<noscript><p class="notice">The charts need JavaScript; the numbers are in the tables.</p></noscript>
<script>{get_plotlyjs()}</script>
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


def _unfinished(directories: Sequence[str]) -> str:
    if not directories:
        return ""
    names = ", ".join(f"<code>{escape(name)}</code>" for name in directories)
    return f'<p class="notice">Left out, as not finished (no summary.json): {names}</p>'


def _section(index: int, group: Group, audit: Sequence[Difference]) -> str:
    cards = "".join(_card(group, found) for found in group.by_architecture().values())
    curves = "".join(render_chart(figure) for figure in (loss_chart(group), validation_chart(group)) if figure)
    return f"""<section>
<h2>{_title(group)}</h2>
<div class="runs">{cards}</div>
{render_chart(result_chart(group))}
<div class="charts">{curves}</div>
<div class="panel"><h3>Runs</h3>{_run_table(group)}</div>
{_samples(group)}
<div class="panel" id="audit-{index}"><h3>Audit: what differs besides the architecture</h3>{_audit(audit)}</div>
{_reproduction(group.runs)}
</section>
"""


def _card(group: Group, runs: Sequence[Run]) -> str:
    first = runs[0]
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
        f'<div class="soft">{seeds}</div>'
        f'<div class="soft">{amount(first.params)} parameters, {escape(layers)} layers</div></div>'
    )


def render_chart(figure: Figure) -> str:
    """A panel with a chart.

    Args:
        figure: of plotly, as plain data; its layout has a height.
    """
    data = json.dumps(figure, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    height = figure["layout"]["height"]
    return (
        f'<div class="panel"><div class="chart" style="height:{height}px"></div>'
        f'<script type="application/json">{data}</script></div>'
    )


def _run_table(group: Group) -> str:
    first = (group.metric.title, f"To the {group.metric.optimum_name}", "Params", "Non-embedding", "Updates", "Tokens")
    columns = ("Architecture", "Seed", *first, "Train FLOPs", "Time", "Tokens/s", "Weights", "Run")
    rows = []
    for run in group.runs:
        value, optimum = group.value(run), group.optimum(run)
        finite = math.isfinite(value)
        gap = group.metric.show_gap(value, optimum) if finite and optimum is not None else ""
        cells = (
            ARCHITECTURES[run.architecture],
            str(run.seed),
            group.metric.show(value) if finite else "not finite",
            gap.removesuffix(f" the {group.metric.optimum_name}"),
            amount(run.params),
            amount(run.non_embedding_params),
            f"{run.updates:,}",
            amount(run.train_tokens),
            amount(run.train_flops),
            duration(run.wall_time_s),
            amount(run.tokens_per_s),
            run.tested_weights,
            run.directory,
        )
        shown = "".join(f'<td class="{_cell_class(index)}">{escape(cell)}</td>' for index, cell in enumerate(cells))
        rows.append(f'<tr class="{run.architecture}">{shown}</tr>')
    heads = "".join(f'<th class="{_cell_class(index)}">{name}</th>' for index, name in enumerate(columns))
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _cell_class(column: int) -> str:
    return {0: "own", 3: "words", 11: "words", 12: "path"}.get(column, "number")


def _samples(group: Group) -> str:
    shown = {name: found[0] for name, found in group.by_architecture().items()}
    outputs: dict[tuple[str, str], dict[str, str]] = {}
    for name, run in shown.items():
        for sample in run.samples:
            outputs.setdefault((sample["input"], sample["reference"]), {})[name] = sample["output"]
    if not outputs:
        return ""
    heads = "".join(f'<th class="own {name}">{ARCHITECTURES[name]}</th>' for name in shown)
    rows = []
    for (given, reference), answers in list(outputs.items())[:_MAX_SAMPLES]:
        cells = "".join(
            f'<td class="sample" data-label="{ARCHITECTURES[name]}">{_answer(answers.get(name), reference, group)}</td>'
            for name in shown
        )
        rows.append(
            f'<tr><td class="sample" data-label="input"><span dir="auto">{escape(given)}</span></td>'
            f'<td class="sample" data-label="reference"><span dir="auto">{escape(reference)}</span></td>{cells}</tr>'
        )
    seeds = ", ".join(f"{ARCHITECTURES[name]} seed {run.seed}" for name, run in shown.items())
    return (
        f'<div class="panel"><h3>Samples <span class="soft">({seeds})</span></h3>'
        f'<table class="samples stack"><thead><tr>'
        f"<th>input</th><th>reference</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _answer(output: str | None, reference: str, group: Group) -> str:
    """An output, marked where the task has one right answer: as right, or as wrong with the differing characters."""
    if output is None:
        return '<span class="soft">no sample</span>'
    if group.task not in _HAS_ONE_ANSWER or group.metric is BLEU:  # many translations of a sentence are right
        return f'<span dir="auto">{escape(output)}</span>'
    if output == reference:
        return f'<span class="right" dir="auto">{escape(output)}</span>'
    marked = escape(output)
    if group.task == "translation":
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
        entries.append(f"<dt>{difference.field}</dt><dd>{escape(difference.text)}<ul>{values}</ul></dd>")
    return f"<dl>{''.join(entries)}</dl>"


def _short(field: str, value: object) -> str:
    if field.endswith("sha256") or field == "git_commit":
        return str(value)[:12] if value else "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return amount(value) if isinstance(value, int | float) else str(value)


def _reproduction(runs: Sequence[Run]) -> str:
    entries = []
    for run in runs:
        commit = f"git checkout {run.git_commit}\n" if run.git_commit else ""
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        hashes = (
            f"data {run.data_sha256[:12]}, tokenizer {run.tokenizer_sha256[:12]}, weights {run.weights_sha256[:12]}"
        )
        facts = f"{versions}; {run.hardware}; {run.precision}; {hashes}"
        entries.append(
            f"<div><b>{escape(run.directory)}</b> <span class=soft>{escape(facts)}</span>"
            f"<pre>{escape(commit + run.command)}</pre></div>"
        )
    return f'<details class="panel"><summary>How to reproduce</summary>{"".join(entries)}</details>'


def _title(group: Group) -> str:
    return f"{_TASK_TITLES[group.task]} · {escape(group.data)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
