"""The cross-entropy over a large vocabulary, computed in chunks of logits to save memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from triptych.nn.autocast import without_autocast

FEWEST_ROWS = 256
CHUNK_BYTES, CHUNK_BYTES_OF_GPUS = 2**23, 2**29
"""Size of a chunk of logits in float32: one that fits the caches of a CPU, and one that keeps a GPU busy; but at least
``FEWEST_ROWS`` states."""
SCALE_OF_FLOAT16 = 2.0**8
"""Scale of the gradients of logits in float16, whose range is 6e-8 to 65504: they are at most 1 + 2 z_loss log Z."""


class Targets(NamedTuple):
    """Targets of a loss.

    Attributes:
        positions: positions of the states, row by row.
        labels: the target at each position.
        label_smoothing: fraction of each label that is spread over all outputs (Szegedy et al. 2016).
        each: whether to return the loss and the most likely output of each target, for an evaluation; otherwise the sum
            of the losses.
        z_loss: weight of (log Z)^2 in that sum, where Z is the sum of the exp(logit); it keeps logits from drifting
            (Chowdhery et al. 2022, section 5).
    """

    positions: Int[Tensor, " targets"]
    labels: Int[Tensor, " targets"]
    label_smoothing: float
    each: bool = False
    z_loss: float = 0.0


def rows_at_once(num_outputs: int, *, on_gpu: bool) -> int:
    """Number of states per chunk."""
    return max(FEWEST_ROWS, (CHUNK_BYTES_OF_GPUS if on_gpu else CHUNK_BYTES) // (4 * num_outputs))


def cross_entropy_rows(
    logits: Float[Tensor, "rows outputs"],
    label: Int[Tensor, "rows 1"],
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    dtype: torch.dtype,
    scale: float = 1.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows outputs"], Float[Tensor, "rows 1"]]:
    """The loss of some logits z, and their gradient (p (1 + 2 z_loss log Z) - q) cap'(z) scale, where p is
    softmax(cap(z)), and cap'(z) is 1 - tanh(z / c)^2, or 1. The gradient is returned for all outputs as if they were
    not the label, and separately at the label.

    Args:
        logits: z.
        label: of each row.
        label_smoothing: see ``Targets``.
        z_loss: see ``Targets``.
        softcap: see ``linear_cross_entropy``.
        dtype: type of the computation; the gradient has that of the logits.
        scale: of the gradient.
    """
    kind, slope = logits.dtype, None
    if softcap is not None:
        bounded = (logits.to(dtype) / softcap).tanh()
        logits, slope = softcap * bounded, 1 - bounded.square()
    log_p = logits.log_softmax(-1, dtype=dtype)
    log_z = logits[:, :1] - log_p[:, :1]
    del logits  # log_p takes their memory
    spread = label_smoothing / log_p.shape[1]
    total = -(1 - label_smoothing) * log_p.gather(1, label).sum()
    if label_smoothing:
        total = total - spread * log_p.sum()
    grad_logits = log_p.exp_()
    if z_loss:
        total = total + z_loss * log_z.square().sum()
        grad_logits *= 1 + 2 * z_loss * log_z
    if label_smoothing:
        grad_logits -= spread
    grad_labels = grad_logits.gather(1, label) - (1 - label_smoothing)
    if slope is not None:
        grad_logits *= slope
        grad_labels *= slope.gather(1, label)
    if scale != 1:
        grad_logits *= scale
        grad_labels *= scale
    return total, grad_logits.to(kind), grad_labels.to(kind)


RowsLoss = Callable[[Tensor, Tensor, float, float, float | None, torch.dtype, float], tuple[Tensor, Tensor, Tensor]]
"""The type of ``cross_entropy_rows``."""


def linear_cross_entropy(
    states: Float[Tensor, "targets d_model"],
    weight: Float[Tensor, "outputs d_model"],
    bias: Float[Tensor, " outputs"] | None,
    targets: Targets,
    softcap: float | None = None,
    rows_loss: RowsLoss = cross_entropy_rows,
) -> Float[Tensor, ""]:
    """sum_i -sum_k q_ik log softmax(cap(W x_i + b))_k + z_loss (log Z_i)^2, where q_i is the smoothed label.

    The gradients are computed in the forward pass, chunk by chunk: all logits are never in memory together, and nothing
    is computed twice. There is one backward pass, and no second derivative.
    (``torch.nn.functional.linear_cross_entropy`` stores all logits under autocast or with smoothing.)

    They are computed before the loss scale of float16 is known. To lose no precision, they are summed in float32, and
    get their final type when they are multiplied by the gradient of the loss.

    Args:
        states: the x_i.
        weight: W.
        bias: b.
        targets: one label per state.
        softcap: c in cap(z) = c tanh(z / c); None: cap(z) = z.
        rows_loss: ``cross_entropy_rows``, possibly compiled.

    Raises:
        ValueError: the numbers of labels and states differ.
    """
    labels = targets.labels
    if len(labels) != len(states):
        raise ValueError(f"{len(labels)} labels for {len(states)} states: expected one for each")
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states, weight, bias, labels, targets.label_smoothing, targets.z_loss, softcap, rows_loss
    )
    return loss


@torch.no_grad()
def score_targets(
    head: Callable[[Tensor], Tensor], num_outputs: int, states: Float[Tensor, "targets d_model"], targets: Targets
) -> Float[Tensor, "2 targets"]:
    """For each target, the cross-entropy -log softmax(head(state))_label, and the index of the largest logit.

    Args:
        head: states to logits.
    """
    rows, found = rows_at_once(num_outputs, on_gpu=states.device.type != "cpu"), []
    for start in range(0, max(len(states), 1), rows):
        part = slice(start, start + rows)
        logits = head(states[part])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = F.cross_entropy(logits, targets.labels[part], reduction="none")
        found.append(torch.stack((losses, logits.argmax(-1).to(losses.dtype))))
    return torch.cat(found, dim=1)


class _LinearCrossEntropy(torch.autograd.Function):
    """See ``linear_cross_entropy``."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        z_loss: float,
        softcap: float | None,
        rows_loss: RowsLoss,
    ) -> Tensor:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        single = torch.promote_types(weight.dtype, torch.float32)  # of sums
        is_narrow = dtype == torch.float16
        scale = SCALE_OF_FLOAT16 if is_narrow else 1.0
        w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
        total = states.new_zeros((), dtype=single)
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_states = torch.empty_like(states, dtype=single if is_narrow else None) if needs_states else None
        grad_weight = torch.zeros_like(weight, dtype=single) if needs_weight else None
        grad_bias = weight.new_zeros(len(weight), dtype=single) if needs_bias else None
        rows = rows_at_once(len(weight), on_gpu=device != "cpu")
        for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
            x, label = states[part].to(dtype), labels[part, None]
            loss, grad_logits, grad_labels = rows_loss(
                F.linear(x, w, b), label, label_smoothing, z_loss, softcap, single, scale
            )
            grad_logits.scatter_(1, label, grad_labels)
            total += loss
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0, dtype=single)
            if grad_states is not None:
                grad_states[part] = multiply(grad_logits, w)
            if grad_weight is not None and dtype == single:
                grad_weight.addmm_(grad_logits.T, x)
            elif grad_weight is not None:
                grad_weight += multiply(grad_logits.T, x)
            del grad_logits, grad_labels  # before the next ones
        gradients: list[Tensor | None] = [grad_states, grad_weight, grad_bias]
        ctx.dtypes, ctx.scale = (states.dtype, weight.dtype, weight.dtype), scale
        if not is_narrow:
            gradients = [g if g is None else g.to(kind) for g, kind in zip(gradients, ctx.dtypes, strict=True)]
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_total: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the saved gradients would count as constants
            raise RuntimeError(
                "create_graph=True: the loss of targets has no second derivative; that of logits has one"
            )
        factor = grad_total[0] / ctx.scale
        gradients = (
            None if gradient is None else gradient.mul_(factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None, None


def multiply(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """a b; for float16 the result is in float32, since sums may exceed 65504."""
    if a.dtype != torch.float16:
        return a @ b
    with without_autocast(a.device):
        if a.device.type == "cuda":
            return torch.mm(a, b, out_dtype=torch.float32)
        return a.float() @ b.float()
