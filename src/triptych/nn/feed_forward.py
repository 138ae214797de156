"""The position-wise feed-forward sub-layer."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """down(act(up(x))), or gated: down(act(gate(x)) * up(x)).

    Vaswani et al. 2017, section 3.3; gated: Shazeer 2020.

    Args:
        d_model: width of the input and the output.
        d_ff: width in between.
        activation: relu, gelu (exact), gelu_tanh or silu.
        gated: whether a second projection gates the first.
        bias: whether the projections have one.
        dropout: probability of dropping a hidden unit.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        activation: ActivationName = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Each position by itself."""
        if self.gate is None:
            hidden = self.activation(self.up(x))
        else:
            hidden = self.activation(self.gate(x)) * self.up(x)
        y: Tensor = self.down(self.dropout(hidden))
        return y
