"""Results of a search: a table on the terminal, and a page with charts.

Tested by tests/search/test_optuna_study.py.
"""

import json
import shlex
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
import plotly.graph_objects as go  # type: ignore[import-untyped]
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import plot_optimization_history, plot_parallel_coordinate, plot_param_importances
from rich.console import Console
from rich.table import Table

from triptych.report.labels import metric_name
from triptych.report.page.document import render_template
from triptych.report.page.style import ARCHITECTURES, Figure, Switch, colour_of, dots, line, make_axis, make_layout
from triptych.search.optuna_study import OptunaStudy
from triptych.storage.atomic import write_text
from triptych.storage.cache import read_json_if_valid
from triptych.storage.run_directory import RunDirectory

DASHES, SYMBOLS = ("solid", "dash", "dot", "dashdot"), ("circle", "square", "diamond", "cross")
LINES = {"best": "solid", "complete": "solid", "pruned": "dot", "failed": "dash", "running": "dashdot"}
"""Dash style by state of a trial."""
HEADINGS = ("search", "trials", "best", "parameters")
MIN_TRIALS = 5
"""Number of complete trials needed to estimate parameter importances."""
TO_TEST = "To test the best trials (without training again) and to compare them"
TO_CONFIRM = "To confirm the best trials with seeds that no trial had (the best of many is partly lucky)"
NAMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def report(studies: Sequence[OptunaStudy], path: Path, tests: Mapping[str, str], confirmations: Sequence[str]) -> None:
    """Prints the best trial of each study with the commands that test and confirm them, and writes the page.

    Args:
        tests: the command that tests the best trial, of each study that has one.
        confirmations: the commands that train them with other seeds.
    """
    settings = studies[0].settings
    table = Table(title=f"best {settings.metric} ({settings.direction}d)", title_justify="left", show_lines=True)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    rows = [summarize_study(study) for study in studies]
    best = [
        directory for study in studies if study.best is not None for directory in study.best.user_attrs.get("runs", [])
    ]
    compare = shlex.join(["triptych", "compare", *best, "--output", str(path.with_name("report.html"))])
    commands = "\n".join([*tests.values(), compare])
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)
    found = draw_history(studies)
    context: dict[str, Any] = {
        "settings": settings,
        "metric": metric_name(settings.metric),
        "headings": HEADINGS,
        "best": rows,
        "commands": {TO_CONFIRM: "\n".join(confirmations), TO_TEST: commands} if best else {},
        "history": found,
        "studies": [describe_study(study, path.parent) for study in studies],
        "has_charts": bool(found),
    }
    write_text(path, render_template("search.html", context))
    print(path)
    for purpose, lines in context["commands"].items():
        print(f"{purpose}:\n{lines}")


def summarize_study(study: OptunaStudy) -> list[str]:
    """The cells of a study: its name, its trials by state, the best value and its parameters."""
    counts = Counter(NAMES.get(trial.state, "running") for trial in study.trials)
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    best = study.best
    if best is None:
        return [study.name, counted, "none", ""]
    params = " ".join(f"{key}={format_value(value)}" for key, value in best.params.items())
    return [study.name, counted, f"{best.value:.6g} (trial {best.number})", params]


def format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def find_architectures(study: OptunaStudy) -> dict[int, str]:
    """The architecture of each trial by number, from the record of its first run; trials without one are left out."""
    found = {}
    for trial in study.trials:
        for run in trial.user_attrs.get("runs", [])[:1]:
            record = read_json_if_valid(RunDirectory(run).record) or read_json_if_valid(RunDirectory(run).pruned) or {}
            if (architecture := record.get("architecture")) in ARCHITECTURES:
                found[trial.number] = architecture
    return found


def choose_colour(architectures: Collection[str]) -> str:
    """The colour of an architecture; a neutral one for several, or if unknown."""
    different = set(architectures)
    return colour_of(different.pop() if len(different) == 1 else "optimum")


def rank_trials(study: OptunaStudy, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The complete trials, the best first, then the others.

    Args:
        folder: of the page, which links are relative to.

    Returns:
        per trial, the cells of a row, and the links to its run directories.
    """
    sign = 1 if study.settings.direction == "minimize" else -1

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            return False, sign * trial.value
        return True, trial.number

    rows = []
    for trial in sorted(study.trials, key=rank):
        state = "best" if study.best and trial.number == study.best.number else NAMES.get(trial.state, "running")
        value = "" if trial.value is None else f"{trial.value:.6g}"
        cells = [str(trial.number), state, value, *(format_value(trial.params[key]) for key in study.searched)]
        links = {run: f"{quote(relpath(run, folder))}/" for run in trial.user_attrs.get("runs", [])}
        rows.append((cells, links))
    return rows


def draw_history(studies: Sequence[OptunaStudy]) -> Switch:
    """Each trial's value and the best so far, for all studies side by side; empty without a complete trial. If a study
    searches the model, trials have the colours of their architectures."""
    found = [study for study in studies if study.best is not None]
    if not found:
        return {}
    metric = metric_name(studies[0].settings.metric)
    figure = to_data(plot_optimization_history([study.optuna for study in found], target_name=metric))
    drawn, traces = Counter[str](), list[Figure]()
    for study in found:
        architectures = find_architectures(study)
        colour = choose_colour(architectures.values())
        look = drawn[colour] % len(DASHES)
        drawn[colour] += 1
        for trace in figure["data"]:
            if len(found) > 1 and not trace["name"].endswith(f" of {study.name}"):
                continue
            name, line = escape(study.name), {"color": colour, "dash": DASHES[look]}
            if trace["mode"] != "markers":
                traces.append(trace | {"line": line, "name": f"{name}, the best so far", "showlegend": False})
                continue
            points = list(zip(trace["x"], trace["y"], strict=True))
            for part, own in split_trials(points, architectures).items():
                marker = {"color": choose_colour([part]) if part else colour, "symbol": SYMBOLS[look], "size": 8}
                word = ARCHITECTURES[part].word if part else name
                label = f"{name}, {word}" if part and len(found) > 1 else word
                own_points = {"x": [x for x, _ in own], "y": [y for _, y in own]}
                traces.append(trace | own_points | {"marker": marker, "name": label, "showlegend": True})
    figure["data"] = traces
    figure["layout"]["xaxis"] |= {"tick0": 0, "dtick": max(1, max(len(study.trials) for study in found) // 10)}
    has_legend = sum(trace["showlegend"] for trace in traces) > 1
    return apply_style(figure, f"Each trial's {escape(metric)}, and the best so far", "trial", has_legend=has_legend)


Point = tuple[int, float]


def split_trials(points: Sequence[Point], architectures: Mapping[int, str]) -> dict[str, list[Point]]:
    """Points by architecture of their trial, in the usual order; under an empty name if there is only one.

    Args:
        points: the number of each trial, and its value.
        architectures: by the number of the trial.
    """
    different = [name for name in ARCHITECTURES if name in architectures.values()]
    names = [*different, ""] if len(different) > 1 else [""]
    parts = {name: [p for p in points if names == [""] or architectures.get(p[0], "") == name] for name in names}
    return {name: own for name, own in parts.items() if own}


def draw_curves(study: OptunaStudy, metric: str, colour: str) -> Switch:
    """The validation curve of each trial, until it ended or was pruned. The legend lists the dash styles.

    Args:
        metric: its name.
        colour: of a study with one architecture.
    """
    architectures = find_architectures(study)
    several = len({*architectures.values()}) > 1
    names: dict[str, Figure] = {}
    traces: list[Figure] = []
    for trial in study.trials:
        architecture, is_best = architectures.get(trial.number), trial == study.best
        state = "best" if is_best else NAMES.get(trial.state, "running")
        label = f"best, trial {trial.number}" if is_best else state
        if several and architecture:
            label += f", {ARCHITECTURES[architecture].word}"
        steps = sorted(trial.intermediate_values)
        own = choose_colour([architecture]) if several and architecture else colour
        values = [trial.intermediate_values[step] for step in steps]
        look = dots(steps, values, own, size=8 if is_best else 4)
        look |= line(steps, values, own, LINES[state], 4 if is_best else 1.5)
        look |= {"mode": "lines+markers", "legendgroup": label}
        traces.append(look | {"name": f"trial {trial.number}", "showlegend": False})
        names[label] = look | {"x": [], "y": [], "name": label}
    figure: Figure = {
        "data": [*(names[label] for label in sorted(names)), *traces],
        "layout": {"xaxis": {}, "yaxis": {}},
    }
    values = [value for trial in study.trials for value in trial.intermediate_values.values()]
    if values and min(values) > 0 and max(values) > 10 * min(values):
        figure["layout"]["yaxis"] |= {"type": "log", "dtick": "D2"}
    return apply_style(
        figure, f"{escape(metric)} of each trial, until it ended or was pruned", "steps", has_legend=True
    )


def describe_study(study: OptunaStudy, folder: Path) -> dict[str, object]:
    """The content of the page for one study: trials, parameter importances, parameters against values, and pruning."""
    metric, charts = metric_name(study.settings.metric), list[Switch]()
    colour = choose_colour(find_architectures(study).values())
    content: dict[str, object] = {
        "name": study.name,
        "headings": ["trial", "state", metric, *study.searched, "run"],
        "trials": rank_trials(study, folder),
        "charts": charts,
    }
    if study.best is None:
        return content
    complete = study.optuna.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) >= MIN_TRIALS and len(study.searched) > 1 and len({trial.value for trial in complete}) > 1:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            evaluator = PedAnovaImportanceEvaluator()
        figure = to_data(plot_param_importances(study.optuna, evaluator=evaluator))
        for trace in figure["data"]:
            trace["marker"] = {"color": colour}
        charts.append(apply_style(figure, f"Importance for {escape(metric)}", "importance"))
    charts.append(draw_curves(study, metric, colour))
    figure = to_data(plot_parallel_coordinate(study.optuna, target_name=metric.partition(" on ")[0]))
    figure["layout"]["xaxis"]["showgrid"] = False  # the axis has the names of the parameters
    return content | {"parallel": apply_style(figure, "Parallel coordinates", "")}


def to_data(figure: go.Figure) -> Figure:
    """A plotly figure as plain data, without its default style."""
    data: Figure = json.loads(figure.to_json())
    for name in ("template", "plot_bgcolor"):
        data["layout"].pop(name, None)
    return data


def apply_style(figure: Figure, title: str, x: str, *, has_legend: bool = False) -> Switch:
    """A figure of Optuna's in the style of the page.

    Args:
        figure: as plain data.
        title: HTML.
        x: title of the horizontal axis, if needed.
        has_legend: whether the traces need their names.
    """
    layout = figure["layout"]
    layout |= make_layout(title, height=340, margin=(60, 30, 60, 60)) | {
        "xaxis": layout["xaxis"] | make_axis() | {"title": {"text": x, "font": {"size": 13}}},
        "yaxis": layout.get("yaxis", {}) | {"title": {}} | make_axis(),
        "showlegend": has_legend,
    }
    return {"": figure}
