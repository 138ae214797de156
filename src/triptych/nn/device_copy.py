"""Asynchronous transfers between the CPU and a device, and copies of modules with other tensors.

Tested by tests/planning/test_peak_memory.py and tests/models/generation/test_beam_search.py.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device without waiting for the device's earlier work: a GPU reads pinned memory itself.

    Args:
        tensor: tensor on the CPU.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """An asynchronous copy of tensors from a device to the CPU.

    Args:
        tensors: tensors on one device.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        device = tensors[0].device
        self._copied = None if device.type == "cpu" else torch.get_device_module(device).Event()
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> tuple[Tensor, ...]:
        """Waits for the copies and returns them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copies


def copy_with_tensors(module: AnyModule, make: Callable[[Tensor], Tensor]) -> AnyModule:
    """Copies a module with other parameters and buffers.

    Args:
        make: maps a parameter or buffer to its replacement in the copy.
    """
    copies: dict[int, Tensor] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copy, is_parameter = make(tensor), isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copy, requires_grad=tensor.requires_grad) if is_parameter else copy
    return deepcopy(module, copies)
