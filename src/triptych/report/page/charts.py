"""The charts of a comparison as plotly figures in plain data.

Tested by tests/report/page/test_render.py and tests/report/statistics/test_standings.py.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape, unescape
from itertools import cycle
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from triptych.report.labels import metric_name
from triptych.report.page.examples import INPUT_WORDS, Bin, choose_runs, list_axes, most_in_training, score_by
from triptych.report.page.style import (
    ARCHITECTURES,
    OPTIMUM,
    TEMPLATE,
    Figure,
    Switch,
    band,
    colour_of,
    dots,
    heatmap,
    line,
    make_axis,
    make_layout,
    round_digits,
)
from triptych.report.read_records import Curve, RecordedRun
from triptych.report.statistics.groups import ComparedConfig, Group
from triptych.report.statistics.metrics import metric_key
from triptych.report.statistics.pareto import find_pareto_front
from triptych.report.statistics.significance import student_interval

_MAX_POINTS = 400
_TITLE_HEIGHT = 30
"""Pixel height of a chart's title, above the chart."""
_DECADES = [10.0**power for power in range(-6, 4)]
_DASHES = ("solid", "dash", "dot", "dashdot")

Plot = Callable[[Group], Switch]
"""Draws the runs of one task; empty if they lack the data for it."""

CLOCKS = {
    "steps": ("steps", "steps"),
    "tokens": ("tokens", "tokens"),
    "train_flops": ("FLOPs", "training FLOPs"),
    "elapsed_s": ("time", "seconds of training"),
}
"""x axes of curves: the column of ``metrics.csv``; the name of its button, and the title of the axis."""


def draw_results(group: Group) -> Figure:
    """Each run's metric as a dot, means if there are several seeds, and the optimum as a line."""
    percent = group.metric.unit == "%"
    scale = 100 if percent else 1
    contenders = group.contenders
    optima = sorted({best for run in group.runs if (best := group.optimum(run)) is not None})
    layout = make_layout(f"{escape(group.metric.title)} on the test set ({group.metric.direction})") | {
        "margin": {"l": 36, "r": 36, "t": 62, "b": 36},
        "xaxis": make_axis() | {"ticksuffix": " %" if percent else "", "nticks": 6, "tickangle": 0},
        "yaxis": {"ticktext": [escape(contender.name) for contender in contenders], "showticklabels": False}
        | {"tickvals": list(range(len(contenders))), "range": [len(contenders) - 0.4, -0.75]}
        | {"showgrid": False, "showline": False, "fixedrange": True},
        "shapes": [],
        "annotations": [],
    }
    traces = [_draw_contender(group, contender, row, scale, layout) for row, contender in enumerate(contenders)]
    for best in optima:
        _draw_optimum(group, best, scale, layout)
    # Invisible dots extend the axis to the optimum, which has no points, and to the minimum range.
    shown = [x for trace in traces for x in trace["x"]] + [scale * best for best in optima]
    shown = _widen(shown, percent=percent) if shown else []
    traces.append(dots(shown, [0] * len(shown), "") | {"marker": {"opacity": 0}, "hoverinfo": "skip"})
    lines = max((len(wrap(c.label, 46)) for c in contenders), default=1)
    return {"data": traces, "layout": layout | {"height": 106 + (60 + 16 * max(lines, 1)) * len(contenders)}}


def _draw_contender(group: Group, contender: ComparedConfig, row: int, scale: float, layout: Figure) -> Figure:
    """A row of the results: a trace of dots. For several seeds, adds their mean as a line with its value to the layout.
    Adds the name, too."""
    name, colour = contender.style, colour_of(contender.style)
    finite = [run for run in contender.runs if math.isfinite(group.value(run))]
    several = len(finite) > 1
    values = [scale * group.value(run) for run in finite]
    if several:
        mean = fmean(values)
        ends = {"x0": mean, "x1": mean, "y0": row - 0.18, "y1": row + 0.18}
        layout["shapes"].append({"type": "line", "line": {"color": colour, "width": 4}} | ends)
        label = f"mean {escape(group.show(finite[0], mean / scale))}"
        at = {"x": mean, "y": row + 0.16, "yanchor": "top"}  # the y axis points downwards
        layout["annotations"].append(at | {"text": label, "font": {"color": "var(--ink)"}})
    # The name is above its row, where a long one fits on a phone, too.
    settings = "<br>".join(escape(line) for line in wrap(contender.label, 46))
    label = f"<b>{escape(contender.level)}</b>{f' {settings}' if settings else ''}"
    at = {"x": 0, "xref": "paper", "xanchor": "left", "xshift": -24, "y": row - 0.2, "yanchor": "bottom"}
    layout["annotations"].append(at | {"text": label, "align": "left", "font": {"color": colour}})
    trace = dots(values, [row] * len(finite), colour, ARCHITECTURES[name].symbol, 11 if several else 15)
    trace["marker"]["opacity"] = 0.6 if several else 1
    return trace | {
        "mode": "markers" if several else "markers+text",
        "text": [escape(group.show(run, group.value(run))) for run in finite],
        "textposition": "bottom center",
        "customdata": [[escape(run.directory), run.seed] for run in finite],
        "hovertemplate": "%{customdata[0]}<br>seed %{customdata[1]}<br>%{text}<extra></extra>",
        "textfont": {"color": "var(--ink)"},
        "cliponaxis": False,
    }


def _draw_optimum(group: Group, best: float, scale: float, layout: Figure) -> None:
    """Adds the best reachable value to the layout: a line, and its name."""
    ends = {"x0": scale * best, "x1": scale * best, "y0": 0, "y1": 1, "yref": "paper"}
    layout["shapes"].append(OPTIMUM | ends)
    # The optimum is usually at the end of the axis, so its label points inwards.
    label = escape(f"{group.metric.optimum_name} {group.metric.show(best)}")
    inwards = "right" if group.metric.higher_is_better else "left"
    at = {"x": scale * best, "y": 1, "yref": "paper", "xanchor": inwards, "yanchor": "bottom"}
    layout["annotations"].append(at | {"text": label, "font": {"color": "var(--optimum)"}})


def _widen(shown: Sequence[float], *, percent: bool) -> list[float]:
    """The ends of an axis for some values: at least two points or 5 % apart, so that small differences look small."""
    low, high = min(shown), max(shown)
    missing = max((2.0 if percent else 0.05 * max(abs(low), abs(high))) - (high - low), 0.0) / 2
    return [low - missing, high + missing]


def _pad(shown: Sequence[float], *, percent: bool) -> list[float]:
    """The same with padding, as the range of an axis."""
    low, high = _widen(shown, percent=percent)
    return [round_digits(low - 0.1 * (high - low)), round_digits(high + 0.1 * (high - low))]


def draw_loss(group: Group) -> Switch:
    """The training loss of each run against steps, tokens, FLOPs and time.

    Returns:
        a figure for each clock that all runs have; empty if no run logged the loss.
    """
    found = [(run, "train/loss") for run in group.runs if "train/loss" in run.curves]
    values = [value for run, key in found for value in run.curves[key].values if math.isfinite(value)]
    axis: Figure = {}
    if values and min(values) > 0:
        is_wide = max(values) > 1000 * min(values)
        ticks = _DECADES if is_wide else [round_digits(digit * decade) for decade in _DECADES for digit in (1, 2, 5)]
        axis = {"type": "log", "tickvals": ticks}
    return _draw_by_clock(group, "train/loss", found, 1, axis)


def draw_validation(group: Group) -> Switch:
    """The primary metric of each run on the validation set, or the loss if no run logged that metric.

    Returns:
        a figure for each clock that all runs have; empty if no run logged either.
    """
    percent = group.metric.unit == "%"
    found = []
    for run in group.runs:
        others = [s.key for s in run.task_info.comparison_metrics if s.unit == group.metric.unit != ""]
        keys = [_validation(key) for key in (metric_key(group.metric, run), group.metric.key, *others)]
        found += [(run, key) for key in keys if key in run.curves][:1]
    if found:
        logged = [100 * value for run, key in found for value in run.curves[key].values if math.isfinite(value)]
        ranges: Figure = {}
        if percent and logged:
            ranges = {"range": _round_range(min(logged), max(logged)), "ticksuffix": " %"}
        return _draw_by_clock(group, _validation(group.metric.key), found, 100 if percent else 1, ranges)
    found = [(run, "val/loss") for run in group.runs if "val/loss" in run.curves]
    return _draw_by_clock(group, "val/loss", found, 1, {})


_COSTS: dict[str, tuple[Callable[[RecordedRun], float | None], str]] = {
    "parameters": (lambda run: run.params, "trainable parameters"),
    "FLOPs": (lambda run: run.train_flops, "training FLOPs"),
    "time": (lambda run: run.wall_time_s, "seconds of training"),
    "latency": (lambda run: run.prediction_latency_s, "seconds per prediction, batch size 1"),
    "memory": (lambda run: run.peak_memory_bytes, "peak memory in bytes"),
}  # fmt: skip
"""x axes of quality: the value of a run, and the title of the axis."""


def draw_costs(group: Group) -> Switch:
    """The mean value of each configuration against its cost, and the Pareto front: no other configuration is both
    better and cheaper.

    Returns:
        a figure for each cost that all runs have and count alike; empty with only one configuration.
    """
    figures: Switch = {}
    if len(group.contenders) < 2:
        return figures
    values = [fmean(group.value(run) for run in contender.runs) for contender in group.contenders]
    for name, (cost_of, title) in _COSTS.items():
        is_known = all(cost_of(run) and math.isfinite(group.value(run)) for run in group.runs)
        if is_known and (name != "FLOPs" or group.counts_alike):
            costs = [fmean(cost_of(run) or 0 for run in contender.runs) for contender in group.contenders]
            figures[name] = _draw_cost(group, [*zip(costs, values, strict=True)], title)
    return figures


def _draw_cost(group: Group, points: Sequence[tuple[float, float]], title: str) -> Figure:
    scale = 100 if group.metric.unit == "%" else 1
    x, y = [round_digits(cost) for cost, _ in points], [round_digits(scale * value) for _, value in points]
    best = find_pareto_front(points, higher_is_better=group.metric.higher_is_better)
    range_y = _pad(y, percent=scale == 100)
    # At least a factor of two, with padding: 120 k and 122 k parameters are nearly the same.
    low, high = math.log10(min(x)), math.log10(max(x))
    air = max(math.log10(2) - (high - low), 0.0) / 2 + 0.08 * max(high - low, math.log10(2))
    range_x = [round_digits(low - air), round_digits(high + air)]
    # From the worse edge to the more expensive edge, so that a front of one point is also a line.
    worst = range_y[0] if group.metric.higher_is_better else range_y[1]
    front_x = [x[best[0]], *(x[i] for i in best), round_digits(10 ** range_x[1])]
    front_y = [worst, *(y[i] for i in best), y[best[-1]]]
    front = line(front_x, front_y, "var(--soft)", "dot", 1.5) | {"name": "Pareto front", "hoverinfo": "skip"}
    front["line"]["shape"] = "hv"
    traces = [front]
    drawn = Counter[str]()
    for i, contender in enumerate(group.contenders):
        kind, colour = contender.style, colour_of(contender.style)
        trace = dots([x[i]], [y[i]], colour, f"{ARCHITECTURES[kind].symbol}{'-open' if drawn[kind] % 2 else ''}", 13)
        trace["marker"]["line"] = {"width": 3, "color": colour}
        drawn[kind] += 1
        text = {"name": escape(contender.name), "text": [escape(group.metric.show(points[i][1]))]}
        hover = {"hovertemplate": f"{escape(contender.name)}<br>%{{x:.4s}}: %{{text}}<extra></extra>"}
        traces.append(trace | text | hover)
    layout = make_layout(f"{escape(group.metric.title)} against cost", height=310, margin=(58, 20, 44, 48)) | {
        "xaxis": make_axis(title) | {"type": "log", "tickformat": ".2s", "nticks": 4, "tickangle": 0, "range": range_x},
        "yaxis": make_axis() | {"ticksuffix": " %" if scale == 100 else "", "range": range_y},
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def draw_difficulty(group: Group) -> Switch:
    """The metric of each configuration by difficulty of the test examples: the mean over its seeds, with its 95 %
    interval if there are several. The training range is shaded if the test set exceeds it.

    Returns:
        a figure per measure of difficulty, or one for the input's number of words; empty if the runs have no
            predictions, or all inputs are alike.
    """
    return {axis: _draw_axis(group, axis, scored) for axis in list_axes(group) if (scored := score_by(group, axis))}


def _draw_axis(group: Group, axis: str, scored: Sequence[tuple[ComparedConfig, list[Bin]]]) -> Figure:
    scale = 100 if group.metric.unit == "%" else 1
    dashes = _choose_dashes(group)
    lines: list[Figure] = []
    bands: list[Figure] = []
    for contender, bins in scored:
        kind, name, labels = contender.style, escape(contender.name), [of_one.label for of_one in bins]
        means = [scale * fmean(of_one.values) for of_one in bins]
        lines.append(
            _draw_marked_line(labels, means, kind, dashes[contender.name], 8)
            | {"name": name, "legendgroup": name, "customdata": [of_one.count for of_one in bins]}
            | {"hovertemplate": "%{x}: %{y:.4g} (%{customdata} examples)<extra>%{fullData.name}</extra>"}
        )
        if len(contender.runs) > 1:
            ends = [student_interval(of_one.values) for of_one in bins]
            low, high = ([scale * pair[side] for pair in ends] for side in (0, 1))
            bands.append(band(labels, low, high, colour_of(kind), name))
    shown = [y for drawn in (*lines, *bands) for y in drawn["y"] if y is not None]
    title = "input length in words" if axis == INPUT_WORDS else escape(axis)
    seen = [i for i, of_one in enumerate(scored[0][1]) if of_one.high <= most_in_training(group, axis)]
    is_beyond = 0 < len(seen) < len(scored[0][1])
    subtitle = "Shaded: the training range. Beyond it, the models extrapolate." if is_beyond else ""
    heading = f"{escape(group.metric.title)} by {'input length' if axis == INPUT_WORDS else title}"
    layout = make_layout(heading, subtitle) | {
        "xaxis": make_axis(title) | {"type": "category"},
        "yaxis": make_axis() | {"ticksuffix": " %" if scale == 100 else "", "range": _pad(shown, percent=scale == 100)},
        "showlegend": True,
    }
    if is_beyond:  # on a category axis, positions count from 0
        place = {"x0": seen[0] - 0.5, "x1": seen[-1] + 0.5, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
        shade: Figure = {"fillcolor": "var(--soft)", "opacity": 0.12, "line": {"width": 0}}
        layout["shapes"] = [{"type": "rect"} | shade | place]
    return {"data": [*bands, *lines], "layout": layout}


def draw_confusions(group: Group) -> Switch:
    """The confusion matrices, as shares of the true class, of the best run of each architecture with classes."""
    figures = {}
    for level, run in choose_runs(group).items():
        matrix = run.confusion_matrix
        if matrix is None:
            continue
        labels, counts = [escape(label) for label in matrix["labels"]], matrix["counts"]
        ticks = [escape(label if len(label) <= 15 else label[:14] + "…") for label in matrix["labels"]]
        shares = [[round_digits(100 * n / max(sum(row), 1)) for n in row] for row in counts]
        trace = (
            heatmap(shares, colour_of(group.styles[level]), 5)
            | {"x": labels, "y": labels, "customdata": counts, "zmin": 0, "zmax": 100, "showscale": True}
            | {"colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0}, "xgap": 1, "ygap": 1}
            | {"hovertemplate": "%{y} predicted as %{x}: %{customdata} (%{z:.3g} %)<extra></extra>"}
        )
        if len(labels) <= 12:
            trace |= {"text": counts, "texttemplate": "%{text}"}
        title = f"{escape(group.word(level))}, seed {run.seed}: a row for each true class"
        axis = {"type": "category", "showgrid": False, "tickvals": labels, "ticktext": ticks}
        axis |= {"showticklabels": len(labels) <= 40}
        layout = make_layout(title, height=120 + min(28 * len(labels), 560), margin=(60, 10, 44, 60)) | {
            "xaxis": make_axis("predicted class", standoff=None) | axis,
            "yaxis": make_axis() | axis | {"autorange": "reversed"},
        }
        figures[group.word(level)] = {"data": [trace], "layout": layout}
    return figures


PLOTS: tuple[Plot, ...] = (draw_loss, draw_validation, draw_costs, draw_difficulty, draw_confusions)
"""Charts of each task below its results, in this order; ``triptych compare --plot`` adds others."""


def _draw_by_clock(
    group: Group, title: str, found: Sequence[tuple[RecordedRun, str]], scale: float, axis: Figure
) -> Switch:
    clocks = [clock for clock in CLOCKS if found and all(clock == "steps" or clock in r.curves for r, _ in found)]
    clocks = [clock for clock in clocks if clock != "train_flops" or group.counts_alike]
    return {CLOCKS[clock][0]: _draw_curves(group, title, found, scale, axis, clock) for clock in clocks}


def _draw_curves(
    group: Group, title: str, found: Sequence[tuple[RecordedRun, str]], scale: float, axis: Figure, clock: str
) -> Figure:
    traces: list[Figure] = []
    seeds: dict[str, list[tuple[RecordedRun, str]]] = {}
    contenders = {run.directory: contender for contender in group.contenders for run in contender.runs}
    dashes = _choose_dashes(group)
    axis_title = CLOCKS[clock][1]
    for run, key in found:
        steps, values = _thin(_against(run, key, clock))
        kind, name = contenders[run.directory].style, contenders[run.directory].name
        label = name + ("" if key == title else f" ({metric_name(key)})")
        traces.append(
            _draw_marked_line(steps, [scale * value for value in values], kind, dashes[name], 6)
            | {"mode": "lines+markers" if len(steps) <= 25 else "lines"}
            | {"name": escape(label), "legendgroup": escape(label), "showlegend": label not in seeds}
            | {"hovertemplate": f"{escape(run.directory)}<br>{axis_title} %{{x:.4s}}: %{{y:.4g}}<extra></extra>"}
        )
        seeds.setdefault(label, []).append((run, key))
    for label, of_one in seeds.items():
        kind = contenders[of_one[0][0].directory].style
        traces += [_draw_band(label, kind, of_one, scale, clock)] if len(of_one) > 1 else []
    layout = make_layout(escape(metric_name(title))) | {
        "xaxis": make_axis(axis_title) | {"rangemode": "tozero"},
        "yaxis": make_axis() | axis,
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def draw_sensitivity(key: str, measure: str, curves: Mapping[str, tuple[str, Mapping[float, float]]]) -> Figure:
    """The scores of variants against a tuned setting.

    Args:
        key: of the setting.
        measure: what the scores are.
        curves: of each variant, its architecture and the score of each value.
    """
    traces, count = [], Counter[str]()
    own = [architecture for architecture, _ in curves.values()]
    styles = own if len({*own}) == len(own) else cycle(ARCHITECTURES)  # the colours of architectures, or any
    for style, (variant, (_, curve)) in zip(styles, curves.items(), strict=False):
        values, scores = zip(*sorted(curve.items()), strict=True)
        dash = _DASHES[count[style] % len(_DASHES)]
        count[style] += 1
        name = escape(variant.replace("_", " "))
        traces.append(_draw_marked_line(values, scores, style, dash, 8) | {"name": name})
    positive = all(value > 0 for _, curve in curves.values() for value in curve)
    layout = make_layout(escape(measure)) | {
        "xaxis": make_axis(escape(key)) | {"type": "log" if positive else "linear"},
        "yaxis": make_axis(),
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _draw_marked_line(x: Sequence[Any], y: Sequence[float], architecture: str, dash: str, size: int) -> Figure:
    """A line with the marker of its architecture."""
    marked = dots(x, y, colour_of(architecture), ARCHITECTURES[architecture].symbol, size)
    return marked | line(x, y, colour_of(architecture), dash) | {"mode": "lines+markers"}


def _draw_band(label: str, kind: str, seeds: Sequence[tuple[RecordedRun, str]], scale: float, clock: str) -> Figure:
    """The range over seeds at the steps that all of them have logged; x values on other clocks are means over seeds."""
    curves = [dict(zip(run.curves[key].steps, run.curves[key].values, strict=True)) for run, key in seeds]
    spent = [_against(run, key, clock).steps for run, key in seeds]
    clocks = [dict(zip(run.curves[key].steps, x, strict=False)) for (run, key), x in zip(seeds, spent, strict=True)]
    shared = sorted(step for step in curves[0] if all(step in c and math.isfinite(c[step]) for c in curves))
    shared = shared[:: -(-len(shared) // _MAX_POINTS) or 1]
    x = [fmean(of_one[step] for of_one in clocks) for step in shared]
    low, high = ([scale * end(c[step] for c in curves) for step in shared] for end in (min, max))
    return band(x, low, high, colour_of(kind), escape(label))


def _choose_dashes(group: Group) -> dict[str, str]:
    """The dash style of each configuration, by name; it differs within a colour."""
    found, count = {}, Counter[str]()
    for contender in group.contenders:
        found[contender.name] = _DASHES[count[contender.style] % len(_DASHES)]
        count[contender.style] += 1
    return found


def _validation(key: str) -> str:
    return key.replace("test/", "val/", 1)


def _against(run: RecordedRun, key: str, clock: str) -> Curve:
    """A curve with its steps converted to the units of a clock."""
    curve = run.curves[key]
    if clock == "steps":
        return curve
    spent = dict(zip(run.curves[clock].steps, run.curves[clock].values, strict=True))
    points = [(spent[step], value) for step, value in zip(curve.steps, curve.values, strict=True) if step in spent]
    return Curve(tuple(x for x, _ in points), tuple(value for _, value in points))


def _round_range(low: float, high: float) -> list[float]:
    """A range rounded to tens, with padding; percentages stay close to 0 to 100."""
    return [max(10 * math.floor((low - 2) / 10), 0), min(10 * math.ceil((high + 2) / 10), 104)]


def _thin(curve: Curve) -> tuple[list[float], list[float]]:
    """At most ``_MAX_POINTS`` of the logged points, evenly spaced, including the last."""
    stride = -(-len(curve.steps) // _MAX_POINTS) or 1
    kept = range(len(curve.steps) - 1, -1, -stride)[::-1]
    return [curve.steps[i] for i in kept], [curve.values[i] for i in kept]


def separate_titles(figures: Switch) -> Switch:
    """Figures with their titles as separate text, because plotly does not wrap titles on narrow pages. Each layout
    needs a title, a height and a margin."""
    return {name: _separate_title(figure) for name, figure in figures.items()}


def _separate_title(figure: Figure) -> Figure:
    layout = dict(figure["layout"])
    title = layout.pop("title")
    layout["height"] -= _TITLE_HEIGHT
    layout["margin"] = {**layout["margin"], "t": layout["margin"]["t"] - _TITLE_HEIGHT}
    texts = {"title": unescape(title["text"]), "subtitle": unescape(title.get("subtitle", {}).get("text", ""))}
    return {**texts, "data": figure["data"], "layout": layout}


def make_independent(figure: Figure) -> Figure:
    """A figure for use outside of our pages: with the style, in the colours of the light theme."""
    resolved: Figure = resolve_colours(figure | {"layout": figure["layout"] | {"template": TEMPLATE}})
    return resolved


def resolve_colours(figure: Any) -> Any:
    """A plotly figure as plain data, with the colours of the light theme instead of CSS variables."""
    if isinstance(figure, str):
        return _light_colours().get(figure.removeprefix("var(").removesuffix(")"), figure)
    if isinstance(figure, list):
        return [resolve_colours(value) for value in figure]
    return {key: resolve_colours(value) for key, value in figure.items()} if isinstance(figure, dict) else figure


@cache
def _light_colours() -> dict[str, str]:
    style = (Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[a-z_-]+): (#[0-9a-f]+);", style.partition("@media")[0]))
