"""What a network would answer from the states of each layer.

Tested by tests/inspection/test_logit_lens.py.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.nn import Network, Stack


def logit_lens(
    network: Network,
    stream: Float[Tensor, "states batch length d_model"],
    mask: Bool[Tensor, "batch length"] | None = None,
) -> Float[Tensor, "states *rows_length_outputs"]:
    """head(final_norm(x_l)) of each l: the logits that each layer would give if it were the last (nostalgebraist 2020).

    Args:
        stream: x_0, ..., x_N of the stack below the head, as of ``Recording.stream``.
        mask: True at non-padding positions, which a head with pooling needs; None: no padding.
    """
    stack = network.get_submodule(network.stack_names[-1])
    assert isinstance(stack, Stack)
    return torch.stack([network.head(stack.final_norm(x), mask) for x in stream.to(_device(network))])


def _device(network: Network) -> torch.device:
    return next(network.parameters()).device
