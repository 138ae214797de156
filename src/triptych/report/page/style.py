"""Styles of the architectures and of plotly figures as plain data.

A colour is a CSS variable; the page's script inserts its value. Plotly interprets texts as HTML, so each function that
draws a figure escapes the names that come from runs.

Tested by tests/report/page/test_document.py.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Figure = dict[str, Any]
Switch = dict[str, Figure]
"""Figures by the names of the buttons that select them; a single one needs no name."""


class ArchitectureStyle(NamedTuple):
    """How an architecture is shown; its colour is a variable of the style sheet with its name.

    Attributes:
        word: its name in a sentence.
        symbol: of its points in charts.
        terminal: its colour on the terminal.
        meaning: a short description.
    """

    word: str
    symbol: str
    terminal: str
    meaning: str


ARCHITECTURES = {
    "full": ArchitectureStyle(
        "full",
        "circle",
        "blue",
        "encoder-decoder: bidirectional attention over the input, causal attention over the output",
    ),
    "encoder_only": ArchitectureStyle("encoder-only", "square", "yellow", "every token attends to every token"),
    "decoder_only": ArchitectureStyle("decoder-only", "diamond", "green", "each token attends to earlier tokens"),
    "prefix_lm": ArchitectureStyle(
        "prefix LM", "cross", "magenta", "decoder-only, with bidirectional attention within the prefix"
    ),
}
"""By their names in a record, in the order of all tables and charts."""

_AXIS = {"gridcolor": "var(--line)", "linecolor": "var(--line)", "showline": True, "zeroline": False}
_AXIS |= {"showgrid": True, "exponentformat": "SI"}  # G, as in our sentences, not B
TEMPLATE: Figure = {
    "layout": {
        "title": {"x": 0, "xref": "container", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 6, "l": 6}}
        | {"font": {"size": 14, "color": "var(--ink)"}, "subtitle": {"font": {"size": 12, "color": "var(--soft)"}}},
        "font": {"family": "system-ui, 'Noto Sans', sans-serif", "size": 13, "color": "var(--soft)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hoverlabel": {"bgcolor": "var(--card)", "font": {"color": "var(--ink)"}, "align": "left"},
        "annotationdefaults": {"showarrow": False},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
"""Shared layout, as plotly's ``layout.template``; each page contains it once."""
OPTIMUM: Figure = {"type": "line", "layer": "below", "line": {"color": "var(--optimum)", "width": 2, "dash": "dash"}}
"""A line at the best reachable value, without its position."""


def make_layout(
    title: str, subtitle: str = "", *, height: int = 290, margin: tuple[int, int, int, int] = (58, 14, 44, 48)
) -> Figure:
    """The layout of one chart.

    Args:
        title: of the chart, HTML.
        subtitle: how to read the chart, HTML, below the title.
        height: in pixels.
        margin: in pixels: left, right, top, bottom.
    """
    titles = {"text": title} | ({"subtitle": {"text": subtitle}} if subtitle else {})
    return {"title": titles, "height": height, "margin": dict(zip("lrtb", margin, strict=True))}


def make_axis(title: str = "", standoff: int | None = 8) -> Figure:
    """An axis that makes room for its labels.

    Args:
        title: HTML.
        standoff: between labels and title, in pixels; None: plotly's default.
    """
    titles = {"text": title, "standoff": standoff, "font": {"size": 13}}
    return {"automargin": True} | ({"title": titles} if title else {})


def colour_of(architecture: str) -> str:
    return f"var(--{architecture})"


def dots(x: Iterable[Any], y: Iterable[Any], colour: str, symbol: str = "circle", size: int = 8) -> Figure:
    marker = {"color": colour, "symbol": symbol, "size": size}
    return {"type": "scatter", "mode": "markers", "x": round_all(x), "y": round_all(y), "marker": marker}


def line(x: Iterable[Any], y: Iterable[Any], colour: str, dash: str = "solid", width: float = 2) -> Figure:
    look = {"color": colour, "width": width, "dash": dash}
    return {"type": "scatter", "mode": "lines", "x": round_all(x), "y": round_all(y), "line": look}


def band(x: Sequence[Any], low: Sequence[float], high: Sequence[float], colour: str, legend_group: str) -> Figure:
    """The area around a line, in its colour."""
    around_x, around_y = round_all([*x, *reversed(x)]), round_all([*low, *reversed(high)])
    look = {"fill": "toself", "fillcolor": colour, "opacity": 0.18}
    hidden = {"legendgroup": legend_group, "showlegend": False, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "none", "x": around_x, "y": around_y} | look | hidden


def heatmap(rows: Iterable[Iterable[Any]], colour: str, digits: int = 3) -> Figure:
    """A matrix, from the background colour to another one; ``digits`` are decimals of its values."""
    z = [[round(float(value), digits) for value in row] for row in rows]
    return {"type": "heatmap", "z": z, "colorscale": [[0, "var(--card)"], [1, colour]], "showscale": False}


def round_all(values: Iterable[Any]) -> list[Any]:
    """Numbers rounded for charts; non-finite ones become gaps, texts stay."""
    return [x if isinstance(x, str) else round_digits(x) if math.isfinite(x) else None for x in values]


def round_digits(value: float) -> float:
    """A number rounded to five significant digits."""
    return float(f"{value:.5g}")
