"""What the parts of a stack are made from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a stack, and what else all its parts share.

    A part takes them first (a norm: the width), then its own options: ``Rotary(sizes, theta=5e5)``. A stack is given
    parts that lack the sizes only, such as ``Rotary`` or ``partial(Rotary, theta=5e5)``.

    Attributes:
        d_model: width of the states.
        num_heads: query heads of each attention.
        head_dim: width of each head.
        d_ff: width of the feed-forward sub-layers.
        max_length: the most positions that a table of positions has vectors for.
        causal: whether a position sees only itself and earlier ones.
        bias: whether the projections have one.
        dropout: of the output of each sub-layer.
    """

    d_model: int
    num_heads: int
    head_dim: int
    d_ff: int
    max_length: int = 512
    causal: bool = False
    bias: bool = True
    dropout: float = 0.0
