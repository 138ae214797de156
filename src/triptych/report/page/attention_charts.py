"""Charts of attention weights, drawn from the ``attention.json`` of runs.

Tested by tests/report/test_attention_maps.py.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from triptych.report.attention_maps import AttentionMap, AttentionMaps, rollout
from triptych.report.page.charts import make_independent
from triptych.report.page.style import ARCHITECTURES, Figure, Switch, colour_of, heatmap, make_layout
from triptych.report.read_records import RecordedRun

MOST_HEADS = 32
"""Most heads, over all layers, that are drawn separately; with more, each layer shows its mean."""
MOST_ALIGNMENTS = 4
"""Most layers whose alignments are drawn in one figure."""
ROOM = 6
"""Characters of a token that fit between two matrices."""
KINDS = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention",
}


def compare_attention(runs: Mapping[str, RecordedRun], styles: Mapping[str, str]) -> Switch:
    """Attention in the first test example that all of these runs have recorded: cross-attention as the alignment of the
    two texts, the heads by layer, and attention rollout.

    Args:
        runs: one per level of the compared factor, by its name.
        styles: the architecture in whose colour each is drawn.

    Returns:
        figures by the names of their buttons; empty without such an example.
    """
    known = {name: run for name, run in runs.items() if run.attention}
    recorded = [{sample["input"]: sample for sample in run.attention} for run in known.values()]
    shared = [text for text in (recorded[0] if recorded else {}) if all(text in of_one for of_one in recorded)]
    if not shared:
        return {}
    figures: Switch = {}
    for (name, run), samples in zip(known.items(), recorded, strict=True):
        found = draw_attention(samples[shared[0]], styles[name], f"{name}, seed {run.seed}")
        figures |= {f"{name}: {title}": figure for title, figure in found.items()}
    return figures


def draw_attention(sample: Mapping[str, Any], architecture: str, name: str) -> Switch:
    """Attention of one network in one text: the alignment or the rollout of each kind of attention, and its heads. Rows
    are labelled with the generated tokens if the network generates text, otherwise with the tokens read.

    Args:
        sample: an entry of ``attention.json``.
        architecture: sets the colour.
        name: of the network, at the start of each title.

    Returns:
        figures by name; the most informative is first: the alignment of two texts, if there are many layers in the
            last.
    """
    figures: Switch = {}
    for kind, words in KINDS.items():
        found = sample[kind]
        if found is None:
            if kind in sample.get("unmapped", ()):
                figures[kind] = draw_unmapped(f"{name}: {words}")
            continue
        weights = torch.tensor(found["weights_x1000"]).double() / 1000
        num_layers, num_heads = weights.shape[:2]
        written = found["written"]
        first = len(found["queries"]) - len(written or found["queries"])
        heads = weights[:, :, first:]
        layers = {f"layer {i + 1}": w.mean(0) for i, w in enumerate(heads)}
        draw = partial(_draw, found=found, first=first, architecture=architecture)
        if kind != "cross":
            last = rollout(weights / weights.sum(-1, keepdim=True))[-1, first:]
            figures[f"{kind} rollout"] = draw(f"{name}: attention rollout through the {kind}", {"": last}, columns=1)
        if kind == "cross" or (written and sample["cross"] is None):
            title = f"{name}: {words}, mean of the heads"
            if num_layers <= MOST_ALIGNMENTS:
                aligned = {"alignment": draw(title, layers, columns=min(num_layers, 2))}
            else:  # one figure per layer, the last first: side by side they would be too small to read
                aligned = {
                    f"alignment {layer.removeprefix('layer ')}": draw(f"{title}, {layer}", {"": w}, columns=1)
                    for layer, w in reversed(layers.items())
                }
            figures = aligned | figures if written else figures | aligned
        if num_layers * num_heads <= MOST_HEADS:
            title = f"{name}: {words}; layers from top to bottom, heads from left to right"
            maps = {f"layer {i + 1}, head {j + 1}": w for i, of in enumerate(heads) for j, w in enumerate(of)}
            figures[f"{kind} heads"] = draw(title, maps, columns=num_heads)
        else:
            figures[f"{kind} heads"] = draw(f"{name}: {words}, mean of the heads", layers, columns=min(num_layers, 6))
    return figures


def choose_maps(maps: AttentionMaps) -> dict[str, AttentionMap]:
    """The kinds of attention to an image or a sound, the most informative first: self-attention of the decoder only
    without cross-attention."""
    found = {"cross": maps.cross, "decoder": None if maps.cross else maps.decoder, "encoder": maps.encoder}
    return {kind: of_kind for kind, of_kind in found.items() if of_kind is not None}


def draw_unmapped(title: str) -> Figure:
    """A placeholder for attention whose weights cannot be recorded."""
    text = {"text": "no attention map", "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    hidden = {"visible": False, "fixedrange": True}
    subtitle = "its class does not implement PairwiseAttention.attend_pairs, or is not linear"
    layout = make_layout(escape(title), subtitle, height=160, margin=(14, 14, 66, 14))
    return {"data": [], "layout": layout | {"xaxis": hidden, "yaxis": hidden, "annotations": [text]}}


def attention_pictures(architecture: str, samples: Sequence[Mapping[str, Any]]) -> Switch:
    """Attention in the first of some entries of ``attention.json``, as figures by name. They use the colours of the
    light theme, for pages outside of our own. Empty without an entry."""
    figures = draw_attention(samples[0], architecture, ARCHITECTURES[architecture].word) if samples else {}
    return {name: make_independent(figure) for name, figure in figures.items()}


def _draw(
    title: str,
    maps: dict[str, Float[Tensor, "rows keys"]],
    *,
    columns: int,
    found: Mapping[str, Any],
    first: int,
    architecture: str,
) -> Figure:
    """Matrices side by side, with rows from ``first``; tokens are written out if they fit."""
    doing, tokens = ("generates", found["written"]) if found["written"] else ("reads", found["queries"])
    rows, keys, num_all = [*map(escape, tokens)], [*map(escape, found["keys"])], found["num_tokens"] - first
    ticks_of_keys, ticks_of_rows = ([shorten(token) for token in side] for side in (found["keys"], tokens))
    longest = max(map(len, [*ticks_of_keys, *ticks_of_rows]), default=0)
    if columns == 2 and longest > ROOM:
        columns = 1
    part = "" if len(rows) == num_all else f" (the first {len(rows)} of {num_all})"
    kind = "generated" if found["written"] else "input"
    subtitle = f"rows: {kind} tokens{part}; columns: the tokens that they attend to"
    num_rows = math.ceil(len(maps) / columns)
    is_labelled = columns <= 2
    gap_x, gap_y = (0.2 if is_labelled else 0.02), (0.28 if is_labelled else 0.1) / max(num_rows, 2)
    width, height = (1 + gap_x) / columns - gap_x, (1 + gap_y) / num_rows - gap_y
    cell = max(13, 300 // max(len(rows), 1)) if is_labelled else max(3, 110 // max(len(rows), 1))
    left_margin, bottom = (24 + 7 * longest, 24 + 6 * longest) if is_labelled else (14, 14)
    height_of_all = 130 + num_rows * (cell * len(rows) + 46)
    layout = make_layout(escape(title), subtitle, height=height_of_all, margin=(left_margin, 14, 66, bottom))
    layout["annotations"] = []
    traces = []
    for i, (name, weights) in enumerate(maps.items()):
        number = str(i + 1) if i else ""
        left, top = (i % columns) * (width + gap_x), 1 - (i // columns) * (height + gap_y)
        traces.append(
            heatmap(weights, colour_of(architecture))
            | {"name": name, "x": number_tokens(keys), "y": number_tokens(rows), "zmin": 0, "zmax": 1}
            | {"xaxis": f"x{number}", "yaxis": f"y{number}"}
            | {"hovertemplate": f"{name}<br>{doing} %{{y}}, attends to %{{x}}: %{{z:.3f}}<extra></extra>"}
        )
        axis = {"domain": [left, left + width], "tickangle": -60, "anchor": f"y{number}"}
        layout[f"xaxis{number}"] = axis | _make_axis(keys, ticks_of_keys, is_labelled=is_labelled)
        axis = {"domain": [max(top - height, 0), top], "autorange": "reversed", "anchor": f"x{number}"}
        layout[f"yaxis{number}"] = axis | _make_axis(rows, ticks_of_rows, is_labelled=is_labelled)
        if is_labelled and name:
            at = {"x": left, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
            layout["annotations"].append(at | {"text": name, "font": {"size": 11}})
    return {"data": traces, "layout": layout}


def _make_axis(names: Sequence[str], ticks: Sequence[str], *, is_labelled: bool) -> Figure:
    """The axis of a matrix, with one row or column per token, and a frame."""
    labels = {"type": "category", "tickvals": number_tokens(names), "ticktext": [escape(text) for text in ticks]}
    look = {"tickfont": {"size": 11}, "showticklabels": is_labelled, "ticks": "", "showgrid": False}
    return labels | look | {"mirror": True, "fixedrange": True}


def shorten(token: str) -> str:
    """The part of a token that fits next to a row; the tooltip and the table show all of it."""
    return token if len(token) <= 2 * ROOM else token[: 2 * ROOM - 1] + "…"


def number_tokens(tokens: Sequence[str]) -> list[str]:
    """Tokens with their positions, from 1, since tokens may repeat."""
    return [f"{i + 1}: {token}" for i, token in enumerate(tokens)]
