"""Arithmetic that autocast leaves alone."""

from contextlib import AbstractContextManager

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Products of float32 are in float32 meanwhile; autocast knows no meta device."""
    kind = "cpu" if device.type == "meta" else device.type
    without: AbstractContextManager[None] = torch.autocast(kind, enabled=False)
    return without
