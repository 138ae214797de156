"""The head, from states to predictions."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triptych.nn.feed_forward import ACTIVATIONS, ActivationName
from triptych.nn.initialization import initialize_linear
from triptych.nn.kernels.cross_entropy import (
    RowsLoss,
    Targets,
    cross_entropy_rows,
    linear_cross_entropy,
    score_targets,
)
from triptych.nn.packing import PackedLayout

Pooling = Literal["none", "first", "mean", "last"]
TransformName = Literal["none", "tanh"] | ActivationName
HeadBiasName = Literal["none", "trained", "fixed"]


class Head(nn.Module):
    """cap(dropout(scale transform(pool(states))) W + b), where transform(x) = norm(act(x W_t + b_t)), or x itself.

    Args:
        d_model: width of the states.
        num_outputs: size of the vocabulary, or number of classes.
        pooling: none (an output per position); first or last (the first or last non-padding position); mean (over the
            non-padding positions).
        transform: none, or the act of a dense layer before the output (Devlin et al. 2019: gelu for masked tokens, tanh
            for classes).
        transform_bias: whether there is a b_t.
        norm: builds the norm of that layer, from its width; None: no norm.
        scale_states: scale = 1 / sqrt(d_model) if true, else 1 (Raffel et al. 2020, with a tied W).
        bias: none, trained, or fixed (b is not trained).
        softcap: c in cap(z) = c tanh(z / c), which bounds the logits (Gemma 2, Riviere et al. 2024, section 2);
            None: cap(z) = z.
        dropout: probability of dropping a unit of the input of W.

    Raises:
        ValueError: there is a norm without a transform, or the cap is not positive.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_outputs: int,
        pooling: Pooling = "none",
        transform: TransformName = "none",
        transform_bias: bool = True,
        norm: Callable[[int], nn.Module] | None = None,
        scale_states: bool = False,
        bias: HeadBiasName = "none",
        softcap: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm is not None and transform == "none":
            raise ValueError("heads.*.norm: the norm follows the transform, and there is none; expected transform=...")
        if softcap is not None and softcap <= 0:
            raise ValueError(f"heads.*.softcap={softcap}: expected more than 0, or null")
        self.pooling, self.softcap = pooling, softcap
        self.dense = None if transform == "none" else nn.Linear(d_model, d_model, bias=transform_bias)
        self.activation = None if transform == "none" else torch.tanh if transform == "tanh" else ACTIVATIONS[transform]
        self.norm = nn.Identity() if norm is None else norm(d_model)
        self.scale = d_model**-0.5 if scale_states else 1.0
        self.dropout = nn.Dropout(dropout)
        self._rows_loss: RowsLoss = cross_entropy_rows
        self.output = nn.Linear(d_model, num_outputs, bias=bias != "none")
        for linear in (self.dense, self.output):
            if linear is not None:
                initialize_linear(linear)
        if bias == "fixed":
            self.output.bias.requires_grad_(False)

    def forward(
        self,
        states: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "batch length"] | None = None,
        documents: PackedLayout | None = None,
    ) -> Float[Tensor, "rows *length outputs"]:
        """Computes logits.

        Args:
            mask: True at non-padding positions; None: no padding.
            documents: the documents if ``states`` is one packed row; each is pooled separately and ``mask`` is ignored.
        """
        if documents is not None and self.pooling != "none":
            states, mask = documents.padded(states), documents.mask
        return self._logits(self._pooled(states, mask))

    def loss(self, states: Float[Tensor, "batch length d_model"], targets: Targets) -> Float[Tensor, "*rows"]:
        """Computes the summed cross-entropy of the targets, or that of each target and its most probable output.

        See ``triptych.nn.kernels.cross_entropy``.

        Args:
            targets: targets at some of the positions; the head must not pool.
        """
        states = states.flatten(0, 1).index_select(0, targets.positions)
        if targets.each:
            return score_targets(self._logits, self.output.out_features, states, targets)
        weight, bias = self.output.weight, self.output.bias
        return linear_cross_entropy(self._transformed(states), weight, bias, targets, self.softcap, self._rows_loss)

    def compile_loss(self) -> None:
        """Compiles the loss with torch.compile; on GPUs it then takes two passes over the logits."""
        self._rows_loss = torch.compile(cross_entropy_rows)

    def _logits(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows outputs"]:
        logits: Tensor = self.output(self._transformed(x))
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def _transformed(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """Returns the input of the last linear layer."""
        if self.dense is not None and self.activation is not None:
            x = self.norm(self.activation(self.dense(x)))
        dropped: Tensor = self.dropout(x * self.scale)
        return dropped

    def _pooled(self, states: Tensor, mask: Tensor | None) -> Tensor:
        if self.pooling == "none":
            return states
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self.pooling == "mean":
            wide = torch.promote_types(states.dtype, torch.float32)  # type for the sum of a long text
            total = (states * mask[..., None]).sum(1, dtype=wide)
            return (total / mask.sum(1, keepdim=True).clamp(min=1)).to(states.dtype)
        places = torch.arange(mask.shape[1], device=mask.device)
        chosen = torch.where(mask, places, -1).amax(1) if self.pooling == "last" else mask.int().argmax(1)
        return states[torch.arange(len(states), device=states.device), chosen.clamp(min=0)]
