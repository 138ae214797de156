"""Tokens (and their places) to vectors."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triptych.nn.position import sinusoids
from triptych.nn.stack import PositionName


class Embedding(nn.Module):
    """dropout(scale E[token] + P[position]).

    Vaswani et al. 2017, sections 3.4 and 3.5.

    Args:
        vocab_size: number of tokens.
        d_model: width.
        max_length: number of positions of a learned table or of sinusoids; rotary, relative and none have no limit.
        position: learned and sinusoidal add P; the others act inside the stack, or nowhere.
        scale_by_width: scale = sqrt(d_model) if true, else 1.
        dropout: probability of dropping a unit.
    """

    positions: Tensor | None

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        max_length: int,
        position: PositionName = "sinusoidal",
        scale_by_width: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.position, self.max_length = position, max_length
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.scale = d_model**0.5 if scale_by_width else 1.0
        self.dropout = nn.Dropout(dropout)
        if position == "learned":
            self.positions = nn.Parameter(torch.empty(max_length, d_model))
            nn.init.normal_(self.positions, std=d_model**-0.5)
        elif position == "sinusoidal":
            self.register_buffer("positions", sinusoids(max_length, d_model), persistent=False)
        else:
            self.positions = None
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"] | None = None,
        *,
        start: int = 0,
    ) -> Float[Tensor, "batch length d_model"]:
        """The vectors of these tokens.

        Args:
            tokens: token ids.
            positions: the place of each token; None: start, start + 1, ...
            start: place of the first token when ``positions`` is None.

        Raises:
            ValueError: more positions than ``max_length``.
        """
        x = self.scale * self.tokens(tokens)
        if self.positions is not None:
            end = (start if positions is None else 0) + tokens.shape[1]
            if end > self.max_length:
                raise ValueError(
                    f"{end} positions, but shape.max_length={self.max_length} (block.position={self.position}); "
                    "raise shape.max_length or use block.position=rotary, which has no limit"
                )
            x = x + (self.positions[start:end] if positions is None else self.positions[positions])
        y: Tensor = self.dropout(x)
        return y
