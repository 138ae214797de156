"""From states to what is predicted."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triptych.nn.initialization import initialize_linear

PoolName = Literal["none", "first", "mean", "last"]


class Head(nn.Module):
    """pool(states) W + b.

    Args:
        d_model: width of the states.
        num_outputs: size of the vocabulary, or number of classes.
        pool: none (an output for each position); first, last (the first, last real position); mean (over the real
            positions).
        bias: whether there is a b.
        dropout: probability of dropping a unit of the pooled state.
    """

    def __init__(
        self, *, d_model: int, num_outputs: int, pool: PoolName = "none", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.pool = pool
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(d_model, num_outputs, bias=bias)
        initialize_linear(self.output)

    def forward(
        self, states: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch *length outputs"]:
        """Logits.

        Args:
            states: of the last layer.
            mask: True at real positions; None: all are real.
        """
        logits: Tensor = self.output(self.dropout(self._pooled(states, mask)))
        return logits

    def _pooled(self, states: Tensor, mask: Tensor | None) -> Tensor:
        if self.pool == "none":
            return states
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self.pool == "mean":
            weights = mask.to(states.dtype)[..., None]
            return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        places = torch.arange(mask.shape[1], device=mask.device)
        chosen = torch.where(mask, places, -1).amax(1) if self.pool == "last" else mask.int().argmax(1)
        return states[torch.arange(len(states), device=states.device), chosen.clamp(min=0)]
