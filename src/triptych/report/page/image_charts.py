"""Charts of attention over an image.

Tested by tests/report/test_playground.py.
"""

from collections.abc import Sequence
from html import escape
from math import ceil

from jaxtyping import Float
from torch import Tensor

from triptych.data import Image
from triptych.data.images import as_address
from triptych.nn import PatchEmbedding
from triptych.nn.head import Pooling
from triptych.report.attention_maps import AttentionMap, AttentionMaps
from triptych.report.page.attention_charts import KINDS, choose_maps, draw_unmapped
from triptych.report.page.style import Figure, Switch, heatmap, make_layout

MOST_PANELS = 12
"""Most panels of a figure: the image, and one per generated token."""
WIDTH = 560
"""Approximate width of a figure in pixels."""
DARK, LIGHT = "rgba(0,0,0,0.82)", "rgba(0,0,0,0)"
"""Overlay colours for the least and the most attention."""


def draw_image(image: Image, embedding: PatchEmbedding, maps: AttentionMaps, pool: Pooling, name: str) -> Switch:
    """The image, then one panel per generated token, bright where the network attended. If nothing is generated: the
    attention of the pooled state, or the mean over all states. Heads of a layer are averaged.

    Args:
        image: at the input size of the network.
        embedding: the embedding of the image.
        maps: recorded during the prediction.
        pool: the states that the head pools.
        name: of the network, at the start of each title.

    Returns:
        figures by name; the last layer of the most informative attention is first.
    """
    figures: Switch = {}
    for kind, of_kind in choose_maps(maps).items():
        rows, names = _choose_rows(of_kind, pool)
        patches = of_kind.weights.mean(1)[:, rows, 1 : embedding.length]
        if pool == "mean":
            patches = patches.mean(1, keepdim=True)
        patches = patches.reshape(*patches.shape[:2], *embedding.grid)
        for layer in reversed(range(len(patches))):
            title = f"{name}: {KINDS[kind]} in layer {layer + 1}, mean of the heads"
            figures[f"{kind} {layer + 1}"] = _draw(title, image, embedding.patch_size, patches[layer], names)
    return figures | {kind: draw_unmapped(f"{name}: {KINDS[kind]}") for kind in maps.unmapped}


def _choose_rows(found: AttentionMap, pool: Pooling) -> tuple[slice, Sequence[str]]:
    """The rows to show, and their labels."""
    if found.written:
        first = len(found.queries) - len(found.written)
        return slice(first, first + MOST_PANELS - 1), found.written[: MOST_PANELS - 1]
    if pool == "mean":
        return slice(None), ["all"]
    if pool == "last":
        return slice(-1, None), found.queries[-1:]
    return slice(1), found.queries[:1]


def _draw(
    title: str,
    image: Image,
    patch_size: tuple[int, int],
    weights: Float[Tensor, "rows grid_rows grid_columns"],
    names: Sequence[str],
) -> Figure:
    """The panels, row by row; labels stand above them."""
    _, height, width = image.shape
    columns = min(len(names) + 1, 2 if width > 2 * height else 4)
    num_rows = ceil((len(names) + 1) / columns)
    gap, head = 12, 22  # pixels between panels, and above each, for its label
    panel_width = (WIDTH - gap * (columns - 1)) / columns
    row_height = panel_width * height / width + head
    whole = num_rows * row_height
    picture = {"type": "image", "source": as_address(image), "hoverinfo": "skip"}
    subtitle = "the image, and one copy per generated token; bright areas get more attention"
    if len(names) == 1:
        subtitle = "the image, and the attention to it; bright areas get more attention"
    layout = make_layout(escape(title), subtitle, height=round(whole) + 80, margin=(14, 14, 66, 14))
    layout["annotations"] = []
    traces: list[Figure] = []
    for i, label in enumerate(["", *names]):
        number = str(i + 1) if i else ""
        left, top = (i % columns) / columns, 1 - (i // columns) * row_height / whole - head / whole
        right, bottom = left + panel_width / WIDTH, top - (row_height - head) / whole
        axes = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        traces.append(picture | axes)
        if i:
            traces.append(_spotlight(weights[i - 1], patch_size, label) | axes)
        hidden = {"visible": False, "fixedrange": True, "constrain": "domain"}
        layout[f"xaxis{number}"] = hidden | {"domain": [left, right], "range": [-0.5, width - 0.5]}
        layout[f"yaxis{number}"] = hidden | {"domain": [max(bottom, 0), top], "range": [height - 0.5, -0.5]}
        layout[f"xaxis{number}"] |= {"anchor": f"y{number}", "constraintoward": "left"}
        layout[f"yaxis{number}"] |= {"anchor": f"x{number}", "constraintoward": "top"}
        layout["annotations"].append(
            {"text": escape(label), "x": left, "y": top, "xref": "paper", "yref": "paper"}
            | {"xanchor": "left", "yanchor": "bottom", "font": {"color": "var(--ink)"}}
        )
    return {"data": traces, "layout": layout}


def _spotlight(weights: Float[Tensor, "rows columns"], patch_size: tuple[int, int], label: str) -> Figure:
    """An overlay: the less attention a patch gets, the darker it is."""
    ground = heatmap(weights, LIGHT, 4) | {"name": "", "zmin": 0, "colorscale": [[0, DARK], [1, LIGHT]]}
    place = {"y0": (patch_size[0] - 1) / 2, "dy": patch_size[0], "x0": (patch_size[1] - 1) / 2, "dx": patch_size[1]}
    return ground | place | {"hovertemplate": f"{escape(label)}: %{{z:.3f}}<extra></extra>"}
