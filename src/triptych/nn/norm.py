"""Norms. Each is a part (see ``triptych.nn.sizes``) that is built from a width.

Tested by tests/nn/test_block.py.
"""

from torch import nn


def check_eps(eps: float) -> float:
    """Returns a valid eps."""
    if eps < 0:
        raise ValueError(f"block.norm.eps={eps}: expected at least 0")
    return eps


class LayerNorm(nn.LayerNorm):
    """w (x - mean(x)) / sqrt(var(x) + eps) + b. Ba et al. 2016.

    Args:
        width: of x.
        eps: added to the variance.
        bias: whether there is a b.

    Raises:
        ValueError: eps is negative.
    """

    def __init__(self, width: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, eps=check_eps(eps), bias=bias)


class RMSNorm(nn.RMSNorm):
    """w x / sqrt(mean(x^2) + eps). Zhang and Sennrich 2019.

    Raises:
        ValueError: eps is negative.
    """

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        super().__init__(width, eps=check_eps(eps))
