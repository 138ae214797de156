"""The cross-entropy of a large vocabulary of outputs, of which only a part is in memory at a time."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

CHUNK_ROWS, CHUNK_BYTES = 1024, 2**24
"""The states that are answered at a time, or more where their logits in float32 are less than so many bytes. With 4,000
states and 33,000 outputs that takes two thirds of the time of all at once on a CPU."""


class Targets(NamedTuple):
    """What should be answered.

    Attributes:
        places: of the states, row by row.
        labels: the answer at each of them.
        label_smoothing: share of each label that is spread over all outputs (Szegedy et al. 2016).
        each: whether the loss of each target is wanted and its likeliest output, for an evaluation; else the sum of
            the losses.
    """

    places: Int[Tensor, " targets"]
    labels: Int[Tensor, " targets"]
    label_smoothing: float
    each: bool = False


def rows_at_once(num_outputs: int) -> int:
    """How many states are answered at a time."""
    return max(CHUNK_ROWS, CHUNK_BYTES // (4 * num_outputs))


def summed_cross_entropy(
    head: Callable[[Tensor], Tensor],
    num_outputs: int,
    states: Float[Tensor, "targets d_model"],
    targets: Targets,
    parameters: Iterable[nn.Parameter],
) -> Float[Tensor, ""]:
    """sum_i -sum_k q_ik log softmax(head(state_i))_k, where q_i is the label, smoothed.

    Where there are too many states for one chunk, the gradient of each chunk is computed at once and its logits are
    dropped: they are never there together, and nothing is computed twice.

    Args:
        head: states to logits.
        num_outputs: of the head.
        states: the states that are answered.
        targets: with a label for each.
        parameters: of the head.
    """

    def loss_of(states: Tensor, labels: Tensor) -> Tensor:
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=targets.label_smoothing)

    rows = rows_at_once(num_outputs)
    if len(states) <= rows or not torch.is_grad_enabled():
        return loss_of(states, targets.labels)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    loss: Tensor = _InChunks.apply(loss_of, rows, states, targets.labels, *trained)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def scores(
    head: Callable[[Tensor], Tensor], num_outputs: int, states: Float[Tensor, "targets d_model"], targets: Targets
) -> Float[Tensor, "2 targets"]:
    """Of each target the cross-entropy -log softmax(head(state))_label, and the number of the largest logit.

    Args:
        head: states to logits.
        num_outputs: of the head.
        states: the states that are answered.
        targets: with a label for each.
    """
    rows, found = rows_at_once(num_outputs), []
    for start in range(0, max(len(states), 1), rows):
        part = slice(start, start + rows)
        logits = head(states[part])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = F.cross_entropy(logits, targets.labels[part], reduction="none")
        found.append(torch.stack((losses, logits.argmax(-1).to(losses.dtype))))
    return torch.cat(found, dim=1)


class _InChunks(torch.autograd.Function):
    """The sum of a loss over chunks of rows, each with its gradient at once."""

    @staticmethod
    def forward(
        ctx: Any,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        rows: int,
        states: Tensor,
        labels: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.promote_types(states.dtype, torch.float32), device=states.device)
        gradients = [torch.empty_like(states), *(torch.zeros_like(weight) for weight in weights)]
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            with torch.enable_grad():
                chunk = states[part].detach().requires_grad_()
                loss = loss_of(chunk, labels[part])
            of_states, *of_weights = torch.autograd.grad(loss, (chunk, *weights))
            total += loss.detach()
            gradients[0][part] = of_states
            for gradient, more in zip(gradients[1:], of_weights, strict=True):
                gradient += more
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *of_total: Tensor) -> tuple[Tensor | None, ...]:
        of_states, *of_weights = (gradient.mul_(of_total[0]) for gradient in ctx.saved_tensors)
        return None, None, of_states, None, *of_weights
