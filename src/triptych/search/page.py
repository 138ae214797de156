"""What a search has found: a table on the terminal, and a page with pictures."""

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import cycle
from pathlib import Path

import optuna
import plotly.graph_objects as go  # type: ignore[import-untyped]
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from optuna.visualization import (
    plot_intermediate_values,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
)
from rich.console import Console
from rich.table import Table

from triptych.durable import write_text
from triptych.report.assets import LOGO
from triptych.report.charts import Figure, base_axis, base_layout
from triptych.report.page import render_chart, render_document
from triptych.search.study import Study

COLOURS = tuple(f"var(--{name})" for name in ("full", "encoder_only", "decoder_only", "optimum", "wrong"))
NAMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def report(studies: Sequence[Study], runs: Sequence[Sequence[Path]], path: Path) -> None:
    """Prints the best trial of each study, and writes the page.

    Args:
        studies: of the sweep.
        runs: the run directories of the best trial of each.
        path: of the page.
    """
    settings = studies[0].settings
    table = Table(title=f"best {settings.metric} ({settings.direction}d)", title_justify="left", show_lines=True)
    for heading in ("study", "trials", "best", "with"):
        table.add_column(heading, overflow="fold")
    rows = [row(study) for study in studies]
    for cells in rows:
        table.add_row(*cells)
    console = Console()
    console.print(table)
    body = f"""<header>
<div class="brand">{LOGO}<span>Triptych</span></div>
<h1>What the search has found</h1>
<p class="soft">{escape(settings.metric)}, {settings.direction}d, on validation; sampler {settings.sampler}, pruner
{settings.pruner}{f", mean of {len(settings.seeds)} seeds" if settings.seeds else ""}.</p>
</header>
<main>
<section>
<div class="panel"><h3>The best trial of each study</h3>{html_table(rows)}</div>
{history(studies)}
</section>
{"".join(map(section, studies))}
</main>"""
    write_text(path, render_document("Triptych: search", body))
    print(path)
    if best := [str(directory) for directories in runs for directory in directories]:
        print(f"compare the best on the test set: triptych compare {' '.join(best)}")


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


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The same table for the page."""
    heads = "".join(f"<th>{heading}</th>" for heading in ("study", "trials", "best", "with"))
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'


def history(studies: Sequence[Study]) -> str:
    """Each trial's value, and the best so far, of all studies side by side."""
    found = [study.optuna for study in studies if study.best is not None]
    if not found:
        return ""
    figure = plain(plot_optimization_history(found, target_name=studies[0].settings.metric))
    for study, colour in zip(found, cycle(COLOURS)):
        for trace in figure["data"]:
            if len(found) == 1 or trace["name"].endswith(f" of {study.study_name}"):
                trace |= {"marker": {"color": colour}, "line": {"color": colour}, "name": escape(study.study_name)}
                trace["showlegend"] = trace["mode"] == "markers"
    return styled(figure, "Each trial's value, and the best so far", "")


def section(study: Study) -> str:
    """The pictures of one study: what was decisive, which settings go with which values, and what was pruned when."""
    if study.best is None:
        return ""
    metric, charts = study.settings.metric, []
    complete = study.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(study.searched) > 1 and len({trial.value for trial in complete}) > 1:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            evaluator = PedAnovaImportanceEvaluator()
        figure = plain(plot_param_importances(study.optuna, evaluator=evaluator))
        for trace in figure["data"]:
            trace["marker"] = {"color": COLOURS[0]}
        charts.append(styled(figure, f"Importance for {escape(metric)}", "share"))
    figure = plain(plot_intermediate_values(study.optuna))
    values = [value for trial in study.trials for value in trial.intermediate_values.values()]
    if values and min(values) > 0 and max(values) > 10 * min(values):
        figure["layout"]["yaxis"] |= {"type": "log", "dtick": "D2"}
    charts.append(styled(figure, f"{escape(metric)} of each trial, until its end or until it was pruned", "updates"))
    figure = plain(plot_parallel_coordinate(study.optuna, target_name=metric))
    figure["layout"]["xaxis"]["showgrid"] = False  # the axis has the names of the parameters
    parallel = styled(figure, "Parallel coordinates", "")
    return f'<section><h2>{escape(study.name)}</h2><div class="charts">{"".join(charts)}</div>{parallel}</section>'


def plain(figure: go.Figure) -> Figure:
    """A figure of plotly as plain data, without the style that it has by itself."""
    data: Figure = json.loads(figure.to_json())
    del data["layout"]["template"]
    return data


def styled(figure: Figure, title: str, x: str) -> str:
    """A figure of Optuna's in the style of the page.

    Args:
        figure: as plain data.
        title: HTML.
        x: what the horizontal axis shows, where it needs saying.
    """
    layout = figure["layout"]
    layout |= base_layout(title) | {
        "xaxis": base_axis() | layout["xaxis"] | {"title": {"text": x, "font": {"size": 13}}},
        "yaxis": base_axis() | layout.get("yaxis", {}) | {"title": {}},
        "height": 340,
        "margin": {"l": 60, "r": 30, "t": 60, "b": 60},
        "showlegend": any(trace.get("showlegend") and not x for trace in figure["data"]),
        "legend": {"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top"},
    }
    return render_chart(figure)
