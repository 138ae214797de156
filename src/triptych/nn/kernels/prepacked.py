"""Linear layers for decoding, where a few rows at a time meet the same weights again and again."""

from copy import deepcopy
from itertools import chain
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from triptych.nn.kernels.linear import by_one_dnn

Part = TypeVar("Part", bound=nn.Module)

SMALLEST = 2**16
"""Numbers of a weight from which its product costs more than the call."""


class PrepackedLinear(nn.Module):
    """y = x W^T + b like ``nn.Linear``, with a copy of W in the order in which the product reads it.

    What torch calls for a few rows reads W as it stands, or puts it into blocks in every call; here oneDNN's blocks are
    made once. Rounding differs: the order of summation changes.

    Args:
        linear: the layer, on a CPU, in float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self._weight: Tensor | None = None

    def forward(self, x: Float[Tensor, "batch *length in_features"]) -> Float[Tensor, "batch *length out_features"]:
        """The layer's output; without a gradient."""
        if self._weight is None:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self.linear.weight.detach())
        return by_one_dnn(x, self._weight, self.linear.bias)


def prepacked(part: Part) -> Part:
    """A copy for decoding, with the same parameters and large linear layers prepacked; itself where that is of no use,
    where gradients are wanted, or where hooks look at its modules.

    Args:
        part: of a network, whose parameters do not change while the copy is used.
    """
    is_possible = torch._C._has_mkldnn and not torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
    modules = list(part.modules())
    is_watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    linears = [module for module in modules if isinstance(module, nn.Linear) and is_slow(module.weight)]
    if is_watched or not is_possible or not linears:
        return part
    shared = {id(tensor): tensor for tensor in chain(part.parameters(), part.buffers())}
    copied = deepcopy(part, shared)
    for module in list(copied.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and is_slow(child.weight):
                setattr(module, name, PrepackedLinear(child))
    return copied


def is_slow(weight: Tensor) -> bool:
    """Whether products with it gain by another order of its numbers."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and not isinstance(weight, DTensor)
    return is_plain and weight.numel() >= SMALLEST
