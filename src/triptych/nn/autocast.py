"""Computation without autocast.

Tested by tests/nn/kernels/test_cross_entropy.py and tests/tasks/test_contrastive.py.
"""

from contextlib import AbstractContextManager

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Disables autocast, so that float32 products stay in float32; the meta device has no autocast."""
    kind = "cpu" if device.type == "meta" else device.type
    without: AbstractContextManager[None] = torch.autocast(kind, enabled=False)
    return without
