"""Tensors on their way between the CPU and another device, which goes on meanwhile, and copies with other tensors."""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for what the device has to do before it: a GPU fetches by itself what
    stands in pinned memory.

    Args:
        tensor: of the CPU.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Download:
    """Tensors that a device copies to the CPU when it comes to that, while it is told what to do next.

    Args:
        tensors: of one device.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        device = tensors[0].device
        self._copied = None if device.type == "cpu" else torch.get_device_module(device).Event()
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> tuple[Tensor, ...]:
        """The copies, when they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copies


def copy_with_tensors(module: AnyModule, make: Callable[[Tensor], Tensor]) -> AnyModule:
    """A copy of a module with other parameters and buffers in place of its own.

    Args:
        make: from a parameter or a buffer to what stands in its place in the copy.
    """
    copies: dict[int, Tensor] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copy, is_parameter = make(tensor), isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copy, requires_grad=tensor.requires_grad) if is_parameter else copy
    return deepcopy(module, copies)
