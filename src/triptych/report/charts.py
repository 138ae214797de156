"""The charts as plotly figures in plain data. A colour is a CSS variable; the page's script puts in its value."""

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from triptych.report.metrics import BITS_PER_BYTE, metric_key
from triptych.report.records import ARCHITECTURES, Curve, Run
from triptych.report.verdicts import Group

_MAX_POINTS = 400
_LOG_TICKS = [10.0**power for power in range(-6, 4)]
_SYMBOLS = {"full": "circle", "encoder_only": "square", "decoder_only": "diamond"}

Figure = dict[str, Any]


def result_chart(group: Group) -> Figure:
    """Each run's value of the metric as a dot, the means where there are several seeds, and the optimum as a line.

    Args:
        group: the runs.

    Returns:
        the figure.
    """
    percent = group.metric.unit == "%"
    scale = 100 if percent else 1
    runs = group.by_architecture()
    traces: list[Figure] = []
    shapes: list[Figure] = []
    notes: list[Figure] = []
    for row, (name, found) in enumerate(runs.items()):
        finite = [run for run in found if math.isfinite(group.value(run))]
        several = len(finite) > 1
        values = [scale * group.value(run) for run in finite]
        marker = {"color": _colour(name), "symbol": _SYMBOLS[name], "size": 11 if several else 15}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers" if several else "markers+text",
                "x": [_rounded(value) for value in values],
                "y": [row] * len(finite),
                "text": [escape(group.metric.show(group.value(run))) for run in finite],
                "textposition": "top center",
                "customdata": [[escape(run.directory), run.seed] for run in finite],
                "hovertemplate": "%{customdata[0]}<br>seed %{customdata[1]}<br>%{text}<extra></extra>",
                "marker": marker | {"opacity": 0.6 if several else 1},
                "textfont": {"color": "var(--ink)"},
                "cliponaxis": False,
            }
        )
        if several:
            mean = fmean(values)
            line = {"color": _colour(name), "width": 4}
            shapes.append({"type": "line", "x0": mean, "x1": mean, "y0": row - 0.3, "y1": row + 0.3, "line": line})
            said = f"mean {group.metric.show(mean / scale)}"
            at = {"x": mean, "y": row - 0.28, "yanchor": "bottom"}  # the axis points downwards
            notes.append(at | {"text": said, "showarrow": False, "font": {"color": "var(--ink)"}})
    optima = sorted({best for run in group.runs if (best := group.optimum(run)) is not None})
    for best in optima:
        line = {"color": "var(--optimum)", "width": 2, "dash": "dash"}
        ends = {"x0": scale * best, "x1": scale * best, "y0": 0, "y1": 1}
        shapes.append({"type": "line", "yref": "paper", "line": line, "layer": "below"} | ends)
        # The optimum is the last thing on its side of the axis, so its label goes inwards.
        label = f"{group.metric.optimum_name} {group.metric.show(best)}"
        inwards = "right" if group.metric.higher_is_better else "left"
        font = {"color": "var(--optimum)"}
        at = {"x": scale * best, "y": 1, "yref": "paper", "xanchor": inwards, "yanchor": "bottom"}
        notes.append(at | {"text": label, "showarrow": False, "font": font})
    # Invisible dots stretch the axis: to the optimum, which draws nothing itself, and to at least two points or 5 %,
    # so that a small difference does not look like a gulf.
    shown = [x for trace in traces for x in trace["x"]] + [scale * best for best in optima]
    if shown:
        missing = max((2.0 if percent else 0.05 * max(shown)) - (max(shown) - min(shown)), 0.0) / 2
        shown = [min(shown) - missing, max(shown) + missing]
    traces.append(
        {"type": "scatter", "mode": "markers", "x": [_rounded(x) for x in shown], "y": [0] * len(shown)}
        | {"marker": {"opacity": 0}, "hoverinfo": "skip"}
    )
    names = [f"<b>{ARCHITECTURES[name]}</b>" for name in runs]
    layout = base_layout(f"{group.metric.title} on the test set ({group.metric.direction})") | {
        "height": 110 + 62 * len(runs),
        "margin": {"l": 105, "r": 30, "t": 62, "b": 36},
        "xaxis": base_axis() | {"ticksuffix": " %" if percent else ""},
        "yaxis": {"tickvals": list(range(len(runs))), "ticktext": names, "range": [len(runs) - 0.45, -0.65]}
        | {"showgrid": False, "zeroline": False, "fixedrange": True},
        "shapes": shapes,
        "annotations": notes,
    }
    return {"data": traces, "layout": layout}


def loss_chart(group: Group) -> Figure | None:
    """The training loss of each run against the updates.

    Args:
        group: the runs.

    Returns:
        the figure, or ``None`` where no run logged it.
    """
    found = [(run, "train/loss") for run in group.runs if "train/loss" in run.curves]
    positive = all(min(run.curves[key].values) > 0 for run, key in found)
    axis = {"type": "log", "tickvals": _LOG_TICKS} if positive else {}
    return _curves("train/loss", found, 1, axis) if found else None


def validation_chart(group: Group) -> Figure | None:
    """The primary metric on the validation set, of each run, against the updates; the loss where no run logged it.

    Args:
        group: the runs.

    Returns:
        the figure, or ``None`` where no run logged either.
    """
    percent = group.metric.unit == "%"
    found = []
    for run in group.runs:
        keys = [_validation(metric_key(group.metric, run)), _validation(group.metric.key)]
        if group.metric.unit == BITS_PER_BYTE.unit:
            keys.append(_validation(BITS_PER_BYTE.key))
        found += [(run, key) for key in keys if key in run.curves][:1]
    if found:
        ranges = {"range": [0, 104], "ticksuffix": " %"} if percent else {}
        return _curves(_validation(group.metric.key), found, 100 if percent else 1, ranges)
    found = [(run, "val/loss") for run in group.runs if "val/loss" in run.curves]
    return _curves("val/loss", found, 1, {}) if found else None


def _curves(title: str, found: Sequence[tuple[Run, str]], scale: float, axis: Figure) -> Figure:
    traces: list[Figure] = []
    named: set[tuple[str, str]] = set()
    for run, key in found:
        steps, values = _thinned(run.curves[key])
        kind = run.architecture
        label = ARCHITECTURES[kind] + ("" if key == title else f" ({key})")
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(steps) <= 25 else "lines",
                "x": steps,
                "y": [_rounded(scale * value) if math.isfinite(value) else None for value in values],
                "name": escape(label),
                "legendgroup": escape(label),
                "showlegend": (kind, key) not in named,
                "line": {"color": _colour(kind), "width": 2},
                "marker": {"color": _colour(kind), "symbol": _SYMBOLS[kind], "size": 6},
                "hovertemplate": f"{escape(run.directory)}<br>update %{{x}}: %{{y:.4g}}<extra></extra>",
            }
        )
        named.add((kind, key))
    layout = base_layout(escape(title)) | {
        "height": 320,
        "margin": {"l": 58, "r": 14, "t": 44, "b": 78},
        "xaxis": base_axis()
        | {"title": {"text": "updates", "standoff": 8, "font": {"size": 13}}, "rangemode": "tozero"},
        "yaxis": base_axis() | axis,
        "legend": {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"},
        "showlegend": True,
        "hovermode": "closest",
    }
    return {"data": traces, "layout": layout}


def _validation(key: str) -> str:
    return key.replace("test/", "val/", 1)


def _thinned(curve: Curve) -> tuple[list[int], list[float]]:
    """At most ``_MAX_POINTS`` of the logged points, evenly spaced, the last one among them."""
    stride = -(-len(curve.steps) // _MAX_POINTS)
    kept = range(len(curve.steps) - 1, -1, -stride)[::-1]
    return [curve.steps[i] for i in kept], [curve.values[i] for i in kept]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _colour(architecture: str) -> str:
    return f"var(--{architecture})"


def base_axis() -> Figure:
    """What all axes have."""
    return {"gridcolor": "var(--line)", "linecolor": "var(--line)", "zeroline": False, "automargin": True}


def base_layout(title: str) -> Figure:
    """What all charts have.

    Args:
        title: of the chart, HTML.
    """
    return {
        "title": {"text": title, "x": 0, "xref": "container", "y": 1, "yref": "container", "yanchor": "top"}
        | {"pad": {"t": 6, "l": 6}, "font": {"size": 14, "color": "var(--ink)"}},
        "font": {"family": "system-ui, 'Noto Sans', sans-serif", "size": 13, "color": "var(--soft)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
    }
