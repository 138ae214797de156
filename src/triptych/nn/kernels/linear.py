"""Linear layers, by the quickest product that torch has."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

HAS_BOTH: bool = torch._C._has_mkldnn and torch._C.has_mkl
"""Whether torch has oneDNN, and another library that it calls for float32."""

SMALLEST = 2**26
"""Multiplications from which oneDNN's call costs less than it gains."""

ROWS = 64
"""oneDNN keeps a program for each number of rows that it has met, so it gets multiples of this alone: batches of one
length, and not the many lengths of packed ones."""


class Linear(nn.Linear):
    """y = x W^T + b: ``torch.nn.Linear``, by ``linear``."""

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        """The product of each row with W, plus b."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch in_features"],
    weight: Float[Tensor, "out_features in_features"],
    bias: Float[Tensor, " out_features"] | None = None,
) -> Float[Tensor, "*batch out_features"]:
    """x W^T + b. In float32 torch asks MKL, which leaves the wider instructions of AMD's processors unused. Large
    products are oneDNN's here, which is up to 1.8 times as quick there. Rounding differs: the order of summation
    changes.

    Args:
        x: rows.
        weight: W.
        bias: b.
    """
    if not is_quicker(x, weight):
        return F.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], len(weight))


def is_quicker(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's product is the quicker one. (``torch.backends.mkldnn.flags(enabled=False)`` rules it out.)"""
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    if is_traced or torch._C._are_functorch_transforms_active():  # they know torch's own product
        return False
    return (
        HAS_BOTH
        and torch._C._get_mkldnn_enabled()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.layout == torch.strided
        and x.shape[-1] == weight.shape[1]
        and x.numel() * len(weight) >= SMALLEST
        and x.shape[:-1].numel() % ROWS == 0
        and not torch.is_autocast_enabled("cpu")
        and not isinstance(weight, DTensor)
    )


def by_one_dnn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b by oneDNN; torch knows no gradient of it."""
    bias = None if bias is None else bias.contiguous()  # no strides of it are looked at
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


class _Linear(torch.autograd.Function):
    """See ``linear``. With G the gradient of y, those of x, W and b are G W, G^T x and the sum of G's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return by_one_dnn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = None if weight is None else linear(of_y[0], weight.T)
        of_weight = None if x is None else of_y[0].T @ x
        of_bias = of_y[0].sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias
