"""Charts of attention over an audio clip.

Tested by tests/report/test_playground.py.
"""

from html import escape

from jaxtyping import Float
from torch import Tensor

from triptych.nn import FrameEmbedding
from triptych.report.attention_maps import AttentionMap, AttentionMaps
from triptych.report.page.attention_charts import KINDS, choose_maps, draw_unmapped, number_tokens
from triptych.report.page.style import Figure, Switch, colour_of, heatmap, make_layout

MOST_CELLS = 60_000
"""Most cells of an attention matrix that is drawn."""
ROW = 14
"""Pixel height of a token's row."""


def draw_sound(
    frames: Float[Tensor, "frames mels"], embedding: FrameEmbedding, maps: AttentionMaps, architecture: str, name: str
) -> Switch:
    """The log-mel spectrogram of a clip and, below it on the same time axis, the attention: a row per generated token,
    or per position that was read if nothing was generated. Heads of a layer are averaged.

    Args:
        embedding: the embedding of the frames.
        maps: recorded during the prediction.
        architecture: sets the colour.
        name: of the network, at the start of each title.

    Returns:
        figures by name; the last layer of the most informative attention is first.
    """
    figures: Switch = {}
    positions = embedding.count(len(frames))
    for kind, of_kind in choose_maps(maps).items():
        num_rows = len(of_kind.written or of_kind.queries)
        if num_rows * positions > MOST_CELLS:
            continue
        means = of_kind.weights.mean(1)[:, len(of_kind.queries) - num_rows :, :positions]
        for layer in reversed(range(len(means))):
            title = f"{name}: {KINDS[kind]} in layer {layer + 1}, mean of the heads"
            drawn = _draw_rows(means[layer], of_kind, embedding, architecture)
            figures[f"{kind} {layer + 1}"] = _stack(title, frames, embedding, drawn)
    figures = figures or {"audio": _stack(f"{name}: audio input", frames, embedding, None)}
    return figures | {kind: draw_unmapped(f"{name}: {KINDS[kind]}") for kind in maps.unmapped}


def _draw_rows(
    weights: Float[Tensor, "rows positions"], found: AttentionMap, embedding: FrameEmbedding, architecture: str
) -> Figure:
    doing, names = ("generates", found.written) if found.written else ("reads", found.queries)
    seconds = [round(i * embedding.stride * embedding.hop, 3) for i in range(weights.shape[1])]
    rows = number_tokens([*map(escape, names)])
    hover = {"hovertemplate": f"{doing} %{{y}}, attends to %{{x}} s: %{{z:.3f}}<extra></extra>"}
    drawn = heatmap(weights, colour_of(architecture))
    return drawn | hover | {"name": "", "x": seconds, "y": rows, "yaxis": "y2", "zmin": 0}


def _stack(
    title: str, frames: Float[Tensor, "frames mels"], embedding: FrameEmbedding, attention: Figure | None
) -> Figure:
    """The spectrogram above the attention to it."""
    seconds = [round(i * embedding.hop, 3) for i in range(len(frames))]
    spectrogram = heatmap(frames.T, "var(--ink)", 2)
    spectrogram |= {"name": "log-mel", "x": seconds, "y": [*range(1, embedding.num_mels + 1)]}
    spectrogram["hovertemplate"] = "%{x} s, band %{y}: %{z:.2f}<extra></extra>"
    names = [] if attention is None else attention["y"]
    below = min(max(ROW * len(names), 90), 260) if names else 0
    above, gap = 140, 26 if names else 0
    whole = above + gap + below
    axis = {"showgrid": False, "mirror": True, "fixedrange": True}
    subtitle = "log-mel spectrogram of the audio" + (
        "; below it, the attention to it, with one row per generated token or input position" if names else ""
    )
    layout = make_layout(escape(title), subtitle, height=whole + 66 + 44, margin=(70, 14, 66, 44)) | {
        "xaxis": axis | {"title": {"text": "seconds"}, "anchor": "y2" if names else "y"},
        "yaxis": axis | {"title": {"text": "mel band"}, "domain": [(below + gap) / whole, 1], "anchor": "x"},
    }
    if not names:
        return {"data": [spectrogram], "layout": layout}
    shown = names[:: max(1, ROW * len(names) // below)]
    layout["yaxis2"] = axis | {
        "type": "category", "domain": [0, below / whole], "autorange": "reversed", "anchor": "x",
        "tickvals": shown, "ticktext": [name.partition(": ")[2] for name in shown], "tickfont": {"size": 11},
    }  # fmt: skip
    return {"data": [spectrogram, attention], "layout": layout}
