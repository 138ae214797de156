"""A copy of a network that decodes faster on CPUs.

Tested by tests/models/generation/test_decoding_copy.py.
"""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.models.generation.decode_step import weights_read
from triptych.nn import Head, MultiHeadAttention, Network, Stack
from triptych.nn.attention import join
from triptych.nn.network import Inputs

FEW_ROWS = 2
"""For at most this number of rows, a product with a matrix that has fewer outputs than inputs is faster without a
transposed copy."""

M = TypeVar("M", bound=nn.Module)


class DecodingParts(NamedTuple):
    """The parts of a network that compute the logits of new tokens."""

    embedding: Inputs
    decoder: Stack
    head: Head


class DecodingCopies:
    """The copies of a network's parts (``copied``), for few and for more rows."""

    def __init__(self) -> None:
        self._reads: Hashable = None
        self._kept: dict[bool, DecodingParts] = {}

    def __getstate__(self) -> dict[str, object]:
        """Returns the state without copies, since a copy of the network has none."""
        return vars(DecodingCopies())

    def serve(self, network: nn.Module) -> bool:
        """Returns whether all parameters are in 32 or 64 bits on the CPU, and no module has hooks (as of FSDP)."""
        return (
            all(x.is_cpu and x.dtype in (torch.float32, torch.float64) for x in network.parameters())
            and not any(x.is_inference() for x in network.parameters())  # their changes are not counted
            and not torch.is_autocast_enabled("cpu")
            and not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
        )

    def take(self, network: Network, decoder: Stack, rows: int) -> DecodingParts:
        """Returns the copies for a number of rows. Those of earlier weights are dropped."""
        reads = weights_read(network), *(parameter._version for parameter in network.parameters())
        if reads != self._reads:
            self._reads, self._kept = reads, {}
        is_few = rows <= FEW_ROWS
        if is_few not in self._kept:
            with torch.inference_mode(False), torch.no_grad():
                self._kept[is_few] = DecodingParts(
                    copied(network.embedding, is_few), copied(decoder, is_few), copied(network.head, is_few)
                )
        return self._kept[is_few]

    def clear(self) -> None:
        """Frees the memory of the copies."""
        self._reads, self._kept = None, {}


def copied(module: M, is_few: bool) -> M:
    """Returns a copy of a module for inference, which shares its parameters, and computes the same with less overhead.

    Linear layers have another copy of their weights, in columns, which products of few rows read twice as fast. The
    queries, keys and values of self-attention are one product. Modules are called without the code for hooks.

    Args:
        is_few: whether there are at most ``FEW_ROWS`` rows.
    """
    made = object.__new__(_direct(type(module)))  # type: ignore[arg-type] # a class is hashable
    attributes = vars(made)
    attributes |= vars(module)
    unused: tuple[nn.Linear, ...] = ()
    if isinstance(module, MultiHeadAttention) and module.projects_at_once:
        unused = module.q, module.k, module.v
        attributes["_project"] = _joined(*unused)
    elif isinstance(module, MultiHeadAttention) and module.is_cross:
        unused = module.k, module.v  # the keys and values of a memory are computed with the prompt
    children = {
        name: child if child is None or child in unused else copied(child, is_few)
        for name, child in module._modules.items()
    }
    attributes |= {**children, "_modules": children}  # attributes are found faster than the modules of a module
    if isinstance(module, nn.Linear) and type(module) is nn.Linear:  # others may compute their weights
        if module.out_features >= module.in_features or not is_few:
            attributes["weight"] = _in_columns(module.weight)
        attributes["bias"] = module.bias
    return made  # type: ignore[return-value]


def _in_columns(weight: Tensor) -> Tensor:
    return weight.detach().t().contiguous().t()


def _joined(*layers: nn.Linear) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """x -> x W_1 + b_1, x W_2 + b_2, ... as one product."""
    (weight, bias), sizes = join(*layers), [layer.out_features for layer in layers]
    weight = _in_columns(weight)
    return lambda x: F.linear(x, weight, bias).split_with_sizes(sizes, dim=-1)


@cache
def _direct(kind: type[nn.Module]) -> type[nn.Module]:
    """The same class, whose modules are called without the code for hooks, and those that only act in training not at
    all."""
    call: Callable[..., Any] = kind.forward
    if kind in (nn.Dropout, nn.Identity):
        call = _unchanged
    elif kind.forward is nn.LayerNorm.forward:
        call = _normed
    return type(kind.__name__, (kind,), {"__call__": call})


def _unchanged(self: nn.Module, x: Tensor) -> Tensor:
    return x


def _normed(self: nn.LayerNorm, x: Tensor) -> Tensor:
    return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
