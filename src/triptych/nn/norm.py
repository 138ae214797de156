"""Norms. Each is a part (see ``triptych.nn.sizes``) that is built from a width.

Tested by tests/nn/test_block.py.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


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


class DetachedLayerNorm(LayerNorm):
    """``LayerNorm`` without gradients through the mean and the variance. Xu et al. 2019, section 4 (DetachNorm)."""

    def forward(self, input: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Normalizes each vector."""
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        variance, mean = torch.var_mean(x.detach(), -1, correction=0, keepdim=True)
        y = self.weight * (x - mean) * (variance + self.eps).rsqrt()
        return (y if self.bias is None else y + self.bias).type_as(input)


class DynamicTanh(nn.Module):
    """w tanh(a x) + b, instead of a norm, with a learned number a. Zhu et al. 2025, section 4.

    Args:
        width: of x.
        initial_scale: a at the start.
    """

    def __init__(self, width: int, *, initial_scale: float = 0.5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(float(initial_scale)))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Bounds each value."""
        return self.weight * (self.scale * x).tanh() + self.bias


class NoNorm(nn.Identity):
    """x: no norm.

    Args:
        width: of x.
    """

    def __init__(self, width: int) -> None:
        super().__init__()


class RMSNorm(nn.RMSNorm):
    """w x / sqrt(mean(x^2) + eps). Zhang and Sennrich 2019.

    Raises:
        ValueError: eps is negative.
    """

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        super().__init__(width, eps=check_eps(eps))
