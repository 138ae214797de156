"""What a network would answer from the states of each layer.

Tested by tests/inspection/test_logit_lens.py.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from triptych.inspection.recording import Recording
from triptych.nn import Network, Stack


def logit_lens(
    network: Network,
    recording: Recording,
    mask: Bool[Tensor, "batch length"] | None = None,
) -> Float[Tensor, "states *rows_length_outputs"]:
    """head(final_norm(x_l)) of each l: the logits that each layer would give if it were the last (nostalgebraist 2020).

    Args:
        recording: of this network; its states x_0, ..., x_N are those of the stack below the head.
        mask: True at non-padding positions, which a head with pooling needs; None: no padding.
    """
    name, device = network.stack_names[-1], next(network.parameters()).device
    stack = network.get_submodule(name)
    assert isinstance(stack, Stack)
    return torch.stack([network.head(stack.final_norm(x), mask) for x in recording.stream(name).to(device)])
