"""The way of a tensor from the CPU to another device."""

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for what the device has to do before it: a GPU fetches by itself what
    stands in pinned memory.

    Args:
        tensor: of the CPU.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
