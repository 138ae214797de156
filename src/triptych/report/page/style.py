"""How what is compared looks: the architectures, and the figures of plotly as plain data.

A colour is a CSS variable; the page's script puts in its value. Plotly reads texts as HTML, so what a run has named is
escaped by those who draw it.
"""

from typing import NamedTuple


class ArchitectureStyle(NamedTuple):
    """How an architecture is shown; its colour is a variable of the style sheet with its name.

    Attributes:
        word: its name in a sentence.
        symbol: of its points in charts.
        terminal: its colour there.
        meaning: what it is, in a few words.
    """

    word: str
    symbol: str
    terminal: str
    meaning: str


ARCHITECTURES = {
    "full": ArchitectureStyle(
        "full", "circle", "blue", "encoder-decoder: sees all of the input, writes from left to right"
    ),
    "encoder_only": ArchitectureStyle("encoder-only", "square", "yellow", "every token sees every token"),
    "decoder_only": ArchitectureStyle("decoder-only", "diamond", "green", "a token sees what stands before it"),
    "prefix_decoder": ArchitectureStyle(
        "prefix decoder", "cross", "magenta", "a decoder by itself, whose prefix sees itself from both sides"
    ),
}
"""By their names in a record, in the order of every table and chart."""
