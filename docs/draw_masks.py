"""Draws the pictures of docs/concepts.md from the masks that the models use: python docs/draw_masks.py"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from triptych.nn import AttentionMask, PackedLayout
from triptych.nn.masks import causal_mask

SOURCE, TARGET = ["le", "chat", "dort"], ["the", "cat", "sleeps"]
BOTH_SIDES, PAST, CROSS = "#b05200", "#007d59", "#0072b2"
"""The colours that reports give to encoder-only, decoder-only and full models (report/page/templates/page.css): of what
an encoder attends to, a decoder, and the full model's decoder in the encoder."""
CPU = torch.device("cpu")
CELL, MARGIN = 24, 8


def pairs(attention_mask: AttentionMask, num_queries: int, num_keys: int) -> Bool[Tensor, "queries keys"]:
    """Which query sees which key, of the last text of a batch."""
    if attention_mask.causal:
        return causal_mask(num_queries, num_keys, CPU)
    mask = attention_mask.dense(CPU).mask
    return torch.ones(num_queries, num_keys, dtype=torch.bool) if mask is None else mask[-1, 0].expand(num_queries, -1)


def visible(
    length: int, *, causal: bool, real: int | None = None, window: int | None = None, prefix: int | None = None
) -> Bool[Tensor, "length length"]:
    """What the tokens of one text see of each other.

    Args:
        real: tokens that are no padding; None: all.
        window: how far a token sees; None: without limit.
        prefix: leading tokens that all see; None: none.
    """
    attention_mask = AttentionMask.of(
        num_queries=length,
        num_keys=length,
        causal=causal,
        key_mask=None if real is None else torch.arange(length)[None] < real,
        device=CPU,
        window=window,
        prefix=None if prefix is None else torch.tensor([prefix]),
    )
    return pairs(attention_mask, length, length)


def draw(caption: str, says: str, tokens: Sequence[str], colours: Sequence[Sequence[str | None]]) -> str:
    """A picture (SVG): a row for each token that looks, a column for each that is looked at.

    Args:
        caption: stands below.
        says: what is to be seen.
        tokens: of rows and columns.
        colours: of the cells; None: the row does not see the column.
    """
    left = top = 2 * MARGIN + 8 * max(map(len, tokens))
    width = max(left + CELL * len(tokens), 8 * len(caption)) + 2 * MARGIN
    height = top + CELL * len(tokens) + 4 * MARGIN
    shapes = []
    for i, row in enumerate(colours):
        y = top + CELL * i
        shapes.append(f'<text x="{left - 6}" y="{y + 16}" text-anchor="end">{escape(tokens[i])}</text>')
        shapes.append(
            f'<text transform="translate({left + CELL * i + 16} {top - 6}) rotate(-90)">{escape(tokens[i])}</text>'
        )
        for j, colour in enumerate(row):
            fill = f'fill="{colour}"' if colour else 'fill="#f4f4f4" stroke="#d8d8d8"'
            shapes.append(
                f'<rect x="{left + CELL * j + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="3" {fill}/>'
            )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="13" fill="#333" role="img">',
        f"<title>{escape(says)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="white"/>',
        *shapes,
        f'<text x="{width / 2}" y="{height - MARGIN}" text-anchor="middle" font-weight="bold">{escape(caption)}</text>',
        "</svg>\n",
    ]
    return "\n".join(lines)


def painted(mask: Bool[Tensor, "queries keys"], colour: str) -> list[list[str | None]]:
    """The cells of a mask in one colour."""
    return [[colour if sees else None for sees in row] for row in mask.tolist()]


def draw_all() -> dict[str, str]:
    """The pictures, by the names of their files."""
    text = [*SOURCE, "<sep>", *TARGET]
    length, prefix, source, target = len(text), len(SOURCE) + 1, len(SOURCE), len(TARGET) + 1
    encoder = painted(visible(source, causal=False), BOTH_SIDES)
    decoder = painted(visible(length, causal=True), PAST)
    prefix_lm = painted(visible(length, causal=False, prefix=prefix), PAST)
    for row in prefix_lm[:prefix]:
        row[:prefix] = [BOTH_SIDES] * prefix
    cross = painted(pairs(AttentionMask(), target, source), CROSS)
    own = painted(visible(target, causal=True), PAST)
    full = [[*row, *[None] * target] for row in encoder] + [[*m, *t] for m, t in zip(cross, own, strict=True)]

    padded = [*SOURCE, "<pad>", "<pad>"]
    padding = painted(visible(5, causal=False, real=3), BOTH_SIDES)
    padding_causal = painted(visible(5, causal=True), PAST)
    window = painted(visible(10, causal=True, window=3), PAST)
    documents = PackedLayout([3, 2, 4], CPU)
    same = documents.numbers[:, None] == documents.numbers
    packed = painted(same & causal_mask(9, 9, CPU), PAST)
    names = [f"{'abc'[number]}{place}" for number, place in zip(documents.numbers, documents.positions, strict=True)]

    whole, past = "Each token sees each token", "Each token sees itself and what precedes it"
    behind = "The source sees all of itself, the target sees it and its own past"
    two = "The encoder sees the source, the decoder sees it and its own past"
    pictures = {
        "encoder_only": draw("encoder-only", whole, SOURCE, encoder),
        "decoder_only": draw("decoder-only", past, text, decoder),
        "prefix_lm": draw("prefix decoder", behind, text, prefix_lm),
        "full": draw("full", two, [*SOURCE, "<bos>", *TARGET], full),
        "padding": draw("padding", "No token sees the padding", padded, padding),
        "padding_causal": draw("padding, causal", "Only padding sees padding", padded, padding_causal),
        "window": draw("window", "Each token sees three", [str(place) for place in range(10)], window),
        "packed": draw("packed row", "Each text sees itself alone", names, packed),
    }
    return {f"{name}.svg": picture for name, picture in pictures.items()}


if __name__ == "__main__":
    for name, picture in draw_all().items():
        (Path(__file__).with_name("pictures") / name).write_text(picture, encoding="utf-8")
