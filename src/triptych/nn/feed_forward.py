"""The position-wise feed-forward sub-layer.

Tested by tests/nn/test_block.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triptych.nn.sizes import Sizes

ActivationName = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "relu_squared", "identity"]


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2. So et al. 2021 (Primer), section 4."""
    y = F.relu(x)
    return y * y  # autocast would compute a power in float32


def identity(x: Tensor) -> Tensor:
    """x: the sub-layer is linear."""
    return x


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x). Hendrycks and Gimpel 2016, section 2; in CLIP, Radford et al. 2021."""
    return F.silu(1.702 * x) / 1.702  # one tensor is kept for the backward pass, not two


ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "relu_squared": relu_squared,
    "identity": identity,
}


class FeedForward(nn.Module):
    """down(dropout(act(up(x)))). Vaswani et al. 2017, section 3.3.

    Args:
        sizes: sizes of the stack.
        activation: act: relu, gelu (exact), gelu_tanh, quick_gelu, silu, relu_squared or identity.
        dropout: probability of dropping a hidden unit.
    """

    def __init__(self, sizes: Sizes, *, activation: ActivationName = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(sizes.d_model, sizes.d_ff, bias=sizes.bias)
        self.down = nn.Linear(sizes.d_ff, sizes.d_model, bias=sizes.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Computes each position separately."""
        y: Tensor = self.down(self.dropout(self.activation(self.up(x))))
        return y


class GatedFeedForward(nn.Module):
    """down(dropout(act(gate(x)) * up(x))). Shazeer 2020.

    Args:
        sizes: sizes of the stack.
        activation: act: relu, gelu (exact), gelu_tanh, quick_gelu, silu, relu_squared or identity.
        dropout: probability of dropping a hidden unit.
    """

    def __init__(self, sizes: Sizes, *, activation: ActivationName = "silu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(sizes.d_model, sizes.d_ff, bias=sizes.bias)
        self.gate = nn.Linear(sizes.d_model, sizes.d_ff, bias=sizes.bias)
        self.down = nn.Linear(sizes.d_ff, sizes.d_model, bias=sizes.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Computes each position separately."""
        y: Tensor = self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))
        return y


class NoFeedForward(nn.Module):
    """No sub-layer: a block then has only its attention.

    Args:
        sizes: sizes of the stack.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
