"""Masked next-token prediction: a decoder reads a text with masked tokens from both sides.

It predicts each masked token at the position before it, as in causal training. Charpentier and Samuel 2024 (GPT-BERT),
section 2.

Tested by tests/tasks/test_masked_next_token.py.
"""

from copy import copy

import torch
from jaxtyping import Int
from torch import Tensor

from triptych.data import IGNORE_INDEX, Batch


def mask_next_tokens(batch: Batch, probability: float, mask: int, others: Int[Tensor, " others"]) -> Batch:
    """Masks tokens of a batch of next-token prediction, which is then read from both sides; only they are targets.

    Of the chosen tokens, 80 % become the mask, 10 % a random token, and 10 % stay (Devlin et al. 2019, section 3.1).

    Args:
        probability: probability of choosing a token.
        mask: the mask token.
        others: tokens to draw random tokens from.
    """
    device, shape = batch.inputs.device, batch.inputs.shape
    is_target = (batch.labels != IGNORE_INDEX).roll(1, dims=1)  # the token that the position before it predicts
    is_target[:, 0] = False
    if batch.lengths is not None:
        ends = torch.tensor(batch.lengths, device=device).cumsum(0)[:-1]
        is_target[:, ends] = False  # the first token of a text, after the end of another
    if batch.mask is not None and batch.lengths is None:
        is_target &= batch.mask
    chosen = is_target & (torch.rand(shape, device=device) < probability)
    kind = torch.rand(shape, device=device)
    drawn = others[torch.randint(len(others), shape, device=device)]
    hidden = torch.where(kind < 0.8, mask, torch.where(kind < 0.9, drawn, batch.inputs))
    changed = read_from_both_sides(batch)
    changed.inputs = torch.where(chosen, hidden, batch.inputs)
    changed.labels = batch.labels.where(chosen.roll(-1, dims=1), IGNORE_INDEX)
    changed.scored = (changed.labels.flatten() != IGNORE_INDEX).nonzero()[:, 0]
    return changed


def read_from_both_sides(batch: Batch) -> Batch:
    """Returns a copy of a batch whose texts a decoder reads with bidirectional attention."""
    changed = copy(batch)
    changed.is_bidirectional = True
    return changed
