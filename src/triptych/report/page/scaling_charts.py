"""Scaling laws as one self-contained HTML page, with the layout of ``templates/scaling.html``.

Tested by tests/report/statistics/test_scaling.py.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from html import escape

import numpy as np

from triptych.config.wording import amount, counted
from triptych.report.page.document import Cell, render_template
from triptych.report.page.render import describe_difference, describe_origin
from triptych.report.page.style import (
    ARCHITECTURES,
    OPTIMUM,
    Figure,
    Switch,
    colour_of,
    dots,
    line,
    make_axis,
    make_layout,
)
from triptych.report.statistics.audit import Difference
from triptych.report.statistics.groups import Group
from triptych.report.statistics.power_laws import LARGEST
from triptych.report.statistics.scaling import EXPONENTS, VARIABLES, Contrast, Exponent, Ladder, Point, profile_exponent
from triptych.tasks.metric_specs import MetricSpec

_KINDS = {style.word: name for name, style in ARCHITECTURES.items()}
_FASTER = {
    "parameters": ("loss", "falls faster with parameters (alpha"),
    "tokens": ("loss", "falls faster with data (beta"),
    "flops": ("loss", "falls faster with FLOPs (exponent"),
    "size": ("best size", "grows faster with FLOPs (exponent"),
}
_LABELS = {name: "FLOPs" if name == "flops" else name for name in VARIABLES}
_AXES = {"flops": "training FLOPs", "parameters": "trainable parameters", "tokens": "training tokens"}
_SHADES = (0.35, 0.5, 0.65, 0.8, 1.0)


def scaling_summary(metric: MetricSpec, ladders: Sequence[Ladder], contrasts: Sequence[Contrast]) -> str:
    """Which architecture scales better in which variable, in one or two sentences."""
    found = []
    if not contrasts:
        law = ladders[0].law
        sizes, data = law.exponents
        found.append(
            f"{metric.title} of {ladders[0].architecture} = {law.irreducible:.4g} + {law.coefficients[0]:.4g} / "
            f"N^{sizes:.3g} + {law.coefficients[1]:.4g} / D^{data:.3g}."
        )
    for contrast in contrasts:
        if contrast.differ:
            faster, slower = contrast.first, contrast.second
            if contrast.difference.value < 0:
                faster, slower = slower, faster
            values = {ladder.architecture: ladder.exponents[contrast.exponent].value for ladder in ladders}
            low, high = sorted(abs(end) for end in (contrast.difference.low, contrast.difference.high))
            ends = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else f"at least {low:.2f}"
            what, grows = _FASTER[contrast.exponent]
            found.append(
                f"The {what} of {faster} {grows} {values[faster]:.2f}, {slower} {values[slower]:.2f}; "
                f"difference {ends})."
            )
    if any(not contrast.differ and not contrast.doubt for contrast in contrasts):
        found.append(f"The {'other ' * bool(found)}exponents do not differ significantly.")
    if doubts := [ladder.doubt for ladder in ladders if ladder.doubt]:
        found.append(f"Inconclusive: {'; '.join(doubts)}.")
    return " ".join([*found, metric.note]).rstrip()


def render_scaling(
    title: str,
    metric: MetricSpec,
    text: str,
    ladders: Sequence[Ladder],
    contrasts: Sequence[Contrast],
    audit: Sequence[Difference],
    group: Group | None,
    left_out: Sequence[str],
) -> str:
    """Builds the self-contained page.

    Args:
        text: the result in words.
        audit: differences other than the architecture and the size.
        group: the runs; None if the models come from a table.
        left_out: models left out, and why.
    """
    context = {
        "title": title,
        "metric": metric,
        "text": text,
        "count": count_models(ladders),
        "is_known": ladders[0].law.is_known,
        "delta": ladders[0].law.delta,
        "left_out": left_out,
        "exponents": tabulate_exponents(ladders),
        "contrasts": tabulate_contrasts(contrasts),
        "frontiers": draw_frontiers(metric, ladders),
        "iso_flops": draw_iso_flops(metric, ladders),
        "minima": [*tabulate_minima(metric, ladders)],
        "alone": [*tabulate_alone(ladders)],
        "residuals": draw_residuals(ladders),
        "models": tabulate_models(metric, ladders),
        "has_audit": group is not None,
        "audit": [describe_difference(difference) for difference in audit],
        "origins": [describe_origin(run, group.runs[0]) for run in group.runs] if group is not None else [],
        "has_charts": True,
    }
    return render_template("scaling.html", context)


def count_models(ladders: Sequence[Ladder]) -> str:
    """How many runs there are, and how many cells."""
    runs, cells = (sum(map(len, groups)) for groups in zip(*((x.points, x.cells) for x in ladders), strict=True))
    return f"{counted(runs, 'run')} in {counted(cells, 'cell')}"


def tabulate_exponents(ladders: Sequence[Ladder]) -> list[list[Cell]]:
    """The exponents of each architecture side by side, with intervals; R squared, and the irreducible loss."""
    rows = {label: [_show(ladder.exponents[name]) for ladder in ladders] for name, label in EXPONENTS.items()} | {
        "Cells (runs)": [f"{len(ladder.cells)} ({len(ladder.points)})" for ladder in ladders],
        "R²": [f"{ladder.law.r_squared:.4f}" for ladder in ladders],
        "E": [f"{ladder.law.irreducible:.4f} ({'known' if ladder.law.is_known else 'fitted'})" for ladder in ladders],
        "A": [f"{ladder.law.coefficients[0]:.6g}" for ladder in ladders],
        "B": [f"{ladder.law.coefficients[1]:.6g}" for ladder in ladders],
    }
    return [
        [
            Cell("Exponent", "words", label),
            *(Cell(ladder.architecture, "number", text) for ladder, text in zip(ladders, texts, strict=True)),
        ]
        for label, texts in rows.items()
    ]


def tabulate_contrasts(contrasts: Sequence[Contrast]) -> list[list[Cell]]:
    return [
        [
            Cell("Exponent", "words", EXPONENTS[contrast.exponent]),
            Cell("Difference", "words", f"{contrast.first} minus {contrast.second}"),
            Cell("Value [95 %]", "number", _show(contrast.difference)),
            Cell("p", "number", f"{contrast.p:.3f}"),
            Cell("p (Holm)", "number", f"{contrast.p_holm:.3f}"),
            Cell("", "words", contrast.outcome),
        ]
        for contrast in contrasts
    ]


def tabulate_alone(ladders: Sequence[Ladder]) -> Iterator[list[Cell]]:
    """The law of each variable alone."""
    for ladder in ladders:
        for name, law in ladder.alone.items():
            low, high = profile_exponent(law).interval
            yield [
                _name("Architecture", ladder),
                Cell("Against", "words", _LABELS[name]),
                Cell("Exponent [95 %]", "number", _show(Exponent(law.exponents[0], low, high))),
                Cell("Coefficient", "number", f"{law.coefficients[0]:.4g}"),
                Cell("E", "number", f"{law.irreducible:.4f}"),
                Cell("R²", "number", f"{law.r_squared:.4f}"),
                Cell("Models", "number", str(len(ladder.frontiers[name]))),
            ]


def tabulate_minima(metric: MetricSpec, ladders: Sequence[Ladder]) -> Iterator[list[Cell]]:
    """The best size for each budget."""
    for ladder in ladders:
        for budget in ladder.iso_flops:
            has_minimum = math.isfinite(budget.best)
            bounds = f"{amount(budget.low)} to {amount(budget.high)}" if math.isfinite(budget.low) else "not bounded"
            where = "inside" if budget.is_inside else "outside the tried sizes" if has_minimum else "no minimum"
            sizes = sorted(point.parameters for point in budget.points)
            yield [
                _name("Architecture", ladder),
                Cell("FLOPs", "number", amount(budget.flops)),
                Cell("Best size", "number", amount(budget.best) if has_minimum else "none"),
                Cell("95 %", "number", bounds if has_minimum else ""),
                Cell("Tried sizes", "number", f"{amount(sizes[0])} to {amount(sizes[-1])}"),
                Cell("Minimum", "words", where),
                Cell(metric.title, "number", metric.show(budget.lowest) if has_minimum else ""),
            ]


def tabulate_models(metric: MetricSpec, ladders: Sequence[Ladder]) -> list[list[Cell]]:
    """Each model, and its distance from the law."""
    return [
        [
            _name("Architecture", ladder),
            Cell("Parameters", "number", amount(point.parameters)),
            Cell("Tokens", "number", amount(point.tokens)),
            Cell("FLOPs", "number", amount(point.flops)),
            Cell("Seed", "number", "" if point.seed is None else str(point.seed)),
            Cell(metric.title, "number", metric.show(point.loss)),
            Cell("Residual", "number", f"{100 * math.expm1(residual):+.2f} %"),
            Cell("Run", "path", point.name),
        ]
        for ladder in ladders
        for point, residual in zip(ladder.points, ladder.residuals, strict=True)
    ]


def draw_frontiers(metric: MetricSpec, ladders: Sequence[Ladder]) -> Switch:
    """The loss against FLOPs, parameters and tokens, with the law of each variable alone."""
    return {label: _draw_frontier(metric, ladders, name) for name, label in _LABELS.items()}


def _draw_frontier(metric: MetricSpec, ladders: Sequence[Ladder], variable: str) -> Figure:
    traces: list[Figure] = []
    for ladder in ladders:
        colour, name = _colour(ladder), escape(ladder.architecture)
        if (law := ladder.alone.get(variable)) is not None:
            x = _spread([getattr(point, variable) for point in ladder.points])
            hidden = {"legendgroup": name, "hoverinfo": "skip", "showlegend": False}
            traces.append(line(x, law.predict(x[:, None]), colour) | hidden)
        points = _draw_points(ladder, ladder.points, variable, [point.loss for point in ladder.points])
        traces.append(points | {"legendgroup": name, "name": name})
    floors = sorted({ladder.law.irreducible for ladder in ladders if ladder.law.is_known})
    title = f"{escape(metric.title)} against {_AXES[variable]} ({metric.direction})"
    layout = _make_layout(title, "Curves: the law, fitted to the Pareto front") | {
        "xaxis": _make_log_axis(_AXES[variable]),
        "yaxis": make_axis(),
        "shapes": [OPTIMUM | {"xref": "paper", "x0": 0, "x1": 1, "y0": floor, "y1": floor} for floor in floors],
        "annotations": [
            {"x": 1, "xref": "paper", "xanchor": "right", "y": floor, "yanchor": "bottom"}
            | {"text": escape(f"{metric.optimum_name} {floor:.4g}"), "font": {"color": "var(--optimum)"}}
            for floor in floors
        ],
    }
    return {"data": traces, "layout": layout}


def draw_iso_flops(metric: MetricSpec, ladders: Sequence[Ladder]) -> Switch:
    """The loss against size for each architecture: a parabola per budget, with its minimum as a cross."""
    return {ladder.architecture: _draw_iso_flops(metric, ladder) for ladder in ladders if ladder.iso_flops}


def _draw_iso_flops(metric: MetricSpec, ladder: Ladder) -> Figure:
    traces: list[Figure] = []
    labels = []
    for i, budget in enumerate(ladder.iso_flops):
        shade = {"opacity": _SHADES[max(len(_SHADES) - len(ladder.iso_flops) + i, 0)]}
        x = _spread([point.parameters for point in budget.points])
        c0, c1, c2 = budget.coefficients
        curve = line(x, c0 + c1 * np.log(x) + c2 * np.log(x) ** 2, _colour(ladder)) | {"hoverinfo": "skip"}
        points = _draw_points(ladder, budget.points, "parameters", [point.loss for point in budget.points])
        traces += [shade | curve, shade | points | {"name": f"{amount(budget.flops)} FLOPs"}]
        at = {"x": math.log10(x[0]), "y": curve["y"][0], "xanchor": "left", "yanchor": "bottom", "yshift": 4}
        labels.append(at | {"text": amount(budget.flops)})
    inside = [budget for budget in ladder.iso_flops if budget.is_inside]
    minima = dots([x.best for x in inside], [x.lowest for x in inside], "var(--ink)", "cross", 11)
    traces.append(minima | {"name": "minimum", "hovertemplate": "best size %{x:.4s}: %{y:.4g}<extra></extra>"})
    title = f"{escape(metric.title)} against size at equal FLOPs: {escape(ladder.architecture)}"
    axes = {"xaxis": _make_log_axis(_AXES["parameters"]), "yaxis": make_axis()}
    layout = _make_layout(title, "One parabola per FLOP budget; crosses are minima") | axes
    return {"data": traces, "layout": layout | {"annotations": labels, "showlegend": False}}


def draw_residuals(ladders: Sequence[Ladder]) -> Switch:
    """The distance of each model from the law in parameters and tokens, against each variable."""
    figures = {}
    for variable in VARIABLES:
        traces = []
        for ladder in ladders:
            points = _draw_points(ladder, ladder.points, variable, 100 * np.expm1(ladder.residuals))
            traces.append(points | {"name": escape(ladder.architecture)})
        layout = _make_layout("Residuals of the law in parameters and tokens", "Measured loss relative to the law") | {
            "xaxis": _make_log_axis(_AXES[variable]),
            "yaxis": make_axis() | {"ticksuffix": " %", "zeroline": True, "zerolinecolor": "var(--soft)"},
        }
        figures[_LABELS[variable]] = {"data": traces, "layout": layout}
    return figures


def _draw_points(ladder: Ladder, points: Sequence[Point], variable: str, y: Iterable[float]) -> Figure:
    kind = _KINDS.get(ladder.architecture)
    symbol = ARCHITECTURES[kind].symbol if kind else "circle"
    return dots([getattr(point, variable) for point in points], y, _colour(ladder), symbol) | {
        "customdata": [[escape(point.name), amount(point.parameters), amount(point.tokens)] for point in points],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} parameters, %{customdata[2]} tokens<br>%{y:.4g}"
        "<extra></extra>",
    }


def _make_layout(title: str, subtitle: str) -> Figure:
    return make_layout(title, subtitle, height=380, margin=(58, 20, 44, 48)) | {"showlegend": True}


def _make_log_axis(title: str) -> Figure:
    return make_axis(title) | {"type": "log", "tickformat": ".2s", "dtick": "D2", "tickangle": 0}


def _spread(x: Sequence[float]) -> np.ndarray:
    """Evenly spaced on a logarithmic scale, from the smallest to the largest."""
    return np.geomspace(min(x), max(x), 60)


def _colour(ladder: Ladder) -> str:
    return colour_of(_KINDS.get(ladder.architecture, "optimum"))


def _name(head: str, ladder: Ladder) -> Cell:
    return Cell(head, f"own {_KINDS.get(ladder.architecture, '')}".strip(), ladder.architecture)


def _show(exponent: Exponent) -> str:
    """An exponent and its interval. Exponents that are impossibly large mean that the law does not need the term."""
    value, low, high = (f"{x:.3f}" if abs(x) < LARGEST else "unbounded" for x in astuple(exponent))
    return f"{value} [{low}, {high}]"
