"""The sizes that the parts of a stack are built from.

Tested by tests/config/test_parts.py and tests/nn/test_initialization.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a stack and other options that all its parts share.

    They are a part's first argument (for a norm, the width), before its own options: ``Rotary(sizes, theta=5e5)``. A
    stack takes parts that lack only the sizes, such as ``Rotary`` or ``partial(Rotary, theta=5e5)``.

    Attributes:
        d_model: width of the states.
        num_heads: number of query heads.
        head_dim: width of each head.
        d_ff: width of the feed-forward sub-layers.
        max_length: maximum number of positions in a table of positions.
        causal: whether a position attends only to itself and earlier ones.
        bias: whether the projections have a bias.
        dropout: dropout probability of each sub-layer's output.
    """

    d_model: int
    num_heads: int
    head_dim: int
    d_ff: int
    max_length: int = 512
    causal: bool = False
    bias: bool = True
    dropout: float = 0.0
