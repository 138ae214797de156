"""What a search has found: a table on the terminal, and a page with pictures."""

import json
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

import optuna
import plotly.graph_objects as go  # type: ignore[import-untyped]
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import (
    plot_intermediate_values,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
)
from rich.console import Console
from rich.table import Table

from triptych.report.page.assets import LOGO
from triptych.report.page.charts import Figure, base_axis, base_layout
from triptych.report.page.render import render_chart, render_document
from triptych.report.records import read_settings
from triptych.report.wording import metric_name
from triptych.search.study import Study
from triptych.storage.atomic import write_text

ARCHITECTURES = {"EncoderDecoder": "full", "EncoderOnly": "encoder_only", "DecoderOnly": "decoder_only"}
"""By the classes of ``triptych.models``."""
DASHES, SYMBOLS = ("solid", "dash", "dot", "dashdot"), ("circle", "square", "diamond", "cross")
HEADINGS = ("study", "trials", "best", "with")
MIN_TRIALS = 5
"""So many complete trials it takes to say what was decisive."""
TO_TEST = "To test the best, once (nothing is trained again), and to compare them"
NAMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def report(studies: Sequence[Study], path: Path, tests: Mapping[str, str]) -> None:
    """Prints the best trial of each study and the commands that test them, and writes the page.

    Args:
        studies: of the sweep.
        path: of the page.
        tests: of each study that has a best trial, the command that tests it.
    """
    settings = studies[0].settings
    table = Table(title=f"best {settings.metric} ({settings.direction}d)", title_justify="left", show_lines=True)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    rows = [row(study) for study in studies]
    best = [directory for study in studies if study.best is not None for directory in runs_of(study.best)]
    compare = shlex.join(["triptych", "compare", *best, "--output", str(path.with_name("report.html"))])
    commands = "\n".join([*tests.values(), compare])
    todo = f"<p>{escape(TO_TEST)}:</p><pre>{escape(commands)}</pre>" if best else ""
    for cells in rows:
        table.add_row(*cells)
    console = Console()
    console.print(table)
    body = f"""<header>
<div class="brand">{LOGO}<span>Triptych</span></div>
<h1>What the search has found</h1>
<p class="soft">{escape(metric_name(settings.metric))}, {settings.direction}d; sampler {settings.sampler}, pruner
{settings.pruner}{f", mean of {len(settings.seeds)} seeds" if settings.seeds else ""}.</p>
</header>
<main>
<section>
<div class="panel"><h3>The best trial of each study</h3>{html_table(HEADINGS, escaped(rows))}{todo}</div>
{history(studies)}
</section>
{"".join(section(study, path.parent) for study in studies)}
</main>"""
    write_text(path, render_document("Triptych: search", body))
    print(path)
    if best:
        print(f"{TO_TEST}:\n{commands}")


def row(study: Study) -> list[str]:
    """The cells of a study: its name, its trials by what became of them, the best value and its parameters."""
    counts = Counter(NAMES.get(trial.state, "under way") for trial in study.trials)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    best = study.best
    if best is None:
        return [study.name, told, "none", ""]
    params = " ".join(f"{key}={shown(value)}" for key, value in best.params.items())
    return [study.name, told, f"{best.value:.6g} (trial {best.number})", params]


def shown(value: object) -> str:
    """A parameter, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def runs_of(trial: FrozenTrial) -> list[str]:
    """The run directories of a trial that was told, one for each seed that was begun."""
    runs: list[str] = trial.user_attrs.get("runs", [])
    return runs


def colour_of(study: Study) -> str:
    """The colour of the architecture that a study trains, the same as on every page; another where it is not known."""
    for run in (run for trial in study.trials for run in runs_of(trial)):
        if (config := Path(run) / "config.yaml").is_file():
            network = str(read_settings(config).get("model._target_")).rpartition(".")[2]
            return f"var(--{ARCHITECTURES[network]})" if network in ARCHITECTURES else "var(--optimum)"
    return "var(--optimum)"


def escaped(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Texts as HTML."""
    return [[escape(cell) for cell in row] for row in rows]


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the page; its cells are HTML."""
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'


def trial_table(study: Study, folder: Path) -> str:
    """The trials with their run directories: the complete ones, the best first, then the others.

    Args:
        study: whose trials.
        folder: of the page, from which the links lead.
    """
    sign = 1 if study.settings.direction == "minimize" else -1

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            return False, sign * trial.value
        return True, trial.number

    rows = []
    for trial in sorted(study.trials, key=rank):
        state = "best" if study.best and trial.number == study.best.number else NAMES.get(trial.state, "under way")
        value = "" if trial.value is None else f"{trial.value:.6g}"
        (cells,) = escaped([[str(trial.number), state, value, *(shown(trial.params[key]) for key in study.searched)]])
        links = (f'<a href="{quote(relpath(run, folder))}/">{escape(run)}</a>' for run in runs_of(trial))
        rows.append([*cells, "<br>".join(links)])
    table = html_table(["trial", "state", metric_name(study.settings.metric), *study.searched, "run"], rows)
    return f'<div class="panel"><h3>Trials</h3>{table}</div>'


def history(studies: Sequence[Study]) -> str:
    """Each trial's value, and the best so far, of all studies side by side."""
    found = [study for study in studies if study.best is not None]
    if not found:
        return ""
    metric = metric_name(studies[0].settings.metric)
    figure = plain(plot_optimization_history([study.optuna for study in found], target_name=metric))
    drawn = Counter[str]()
    for study in found:
        colour = colour_of(study)
        marker = {"color": colour, "symbol": SYMBOLS[drawn[colour] % len(SYMBOLS)], "size": 8}
        line = {"color": colour, "dash": DASHES[drawn[colour] % len(DASHES)]}
        drawn[colour] += 1
        for trace in figure["data"]:
            if len(found) == 1 or trace["name"].endswith(f" of {study.name}"):
                trace |= {"marker": marker, "line": line, "name": escape(study.name)}
                trace["showlegend"] = trace["mode"] == "markers"
    figure["layout"]["xaxis"] |= {"tick0": 0, "dtick": max(1, max(len(study.trials) for study in found) // 10)}
    return styled(figure, f"Each trial's {escape(metric)}, and the best so far", "trial", has_legend=len(found) > 1)


def section(study: Study, folder: Path) -> str:
    """One study: its trials, what was decisive, which settings go with which values, and what was pruned when.

    Args:
        study: whose trials.
        folder: of the page.
    """
    title, table = f"<h2>{escape(study.name)}</h2>", trial_table(study, folder)
    if study.best is None:
        return f"<section>{title}{table}</section>"
    metric, charts, colour = metric_name(study.settings.metric), list[str](), colour_of(study)
    complete = study.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) >= MIN_TRIALS and len(study.searched) > 1 and len({trial.value for trial in complete}) > 1:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            evaluator = PedAnovaImportanceEvaluator()
        figure = plain(plot_param_importances(study.optuna, evaluator=evaluator))
        for trace in figure["data"]:
            trace["marker"] = {"color": colour}
        charts.append(styled(figure, f"Importance for {escape(metric)}", "share"))
    figure = plain(plot_intermediate_values(study.optuna))
    values = [value for trial in study.trials for value in trial.intermediate_values.values()]
    if values and min(values) > 0 and max(values) > 10 * min(values):
        figure["layout"]["yaxis"] |= {"type": "log", "dtick": "D2"}
    charts.append(styled(figure, f"{escape(metric)} of each trial, until its end or until it was pruned", "updates"))
    figure = plain(plot_parallel_coordinate(study.optuna, target_name=metric.partition(" on ")[0]))
    figure["layout"]["xaxis"]["showgrid"] = False  # the axis has the names of the parameters
    parallel = styled(figure, "Parallel coordinates", "")
    return f'<section>{title}{table}<div class="charts">{"".join(charts)}</div>{parallel}</section>'


def plain(figure: go.Figure) -> Figure:
    """A figure of plotly as plain data, without the style that it has by itself."""
    data: Figure = json.loads(figure.to_json())
    del data["layout"]["template"]
    return data


def styled(figure: Figure, title: str, x: str, *, has_legend: bool = False) -> str:
    """A figure of Optuna's in the style of the page.

    Args:
        figure: as plain data.
        title: HTML.
        x: what the horizontal axis shows, where it needs saying.
        has_legend: whether the traces need their names.
    """
    layout = figure["layout"]
    layout |= base_layout(title) | {
        "xaxis": base_axis() | layout["xaxis"] | {"title": {"text": x, "font": {"size": 13}}},
        "yaxis": base_axis() | layout.get("yaxis", {}) | {"title": {}},
        "height": 340,
        "margin": {"l": 60, "r": 30, "t": 60, "b": 60},
        "showlegend": has_legend,
    }
    return render_chart(figure)
