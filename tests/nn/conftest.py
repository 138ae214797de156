"""Help for the tests of the shared blocks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

if TYPE_CHECKING:  # the checks of shapes are installed first
    from triptych.nn import MultiHeadAttention


@torch.no_grad()
def _copy_attention(mine: "MultiHeadAttention", other: nn.MultiheadAttention) -> None:
    other.in_proj_weight.copy_(torch.cat([mine.q.weight, mine.k.weight, mine.v.weight]))
    other.in_proj_bias.copy_(torch.cat([mine.q.bias, mine.k.bias, mine.v.bias]))
    other.out_proj.load_state_dict(mine.o.state_dict())


@pytest.fixture(scope="session")
def copy_attention() -> Callable[["MultiHeadAttention", nn.MultiheadAttention], None]:
    """Copies the weights of our attention into PyTorch's."""
    return _copy_attention
