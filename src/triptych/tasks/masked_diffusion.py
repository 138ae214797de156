"""Masked diffusion: an encoder learns to predict hidden places, and generates by filling them in.

Tested by tests/tasks/test_masked_diffusion.py and tests/tasks/test_image_generation.py.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from triptych.data import IGNORE_INDEX, Batch
from triptych.nn.device_copy import copy_to_device

Proposal = tuple[Int[Tensor, "batch length"], Float[Tensor, "batch length"]]
"""A token for each place, and its rank: places with the lowest are filled in first."""


def draw(batch: Batch) -> tuple[Float[Tensor, " texts"], Float[Tensor, "batch length"]]:
    """Returns shares and orders for ``hide``: uniform numbers. The shares of n texts are spread evenly, (i / n + u) mod
    1. Always float32, since bfloat16 has too few distinct values to order many places."""
    count, options = len(_lengths(batch)), dict[str, Any](dtype=torch.float32, device=batch.labels.device)
    shares = (torch.arange(count, **options) / max(count, 1) + torch.rand((), **options)) % 1
    return shares, torch.rand(batch.labels.shape, **options)


def draw_by_index(batch: Batch, seed: int) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch length"]]:
    """Returns shares and orders for ``hide`` that are functions of the seed and of the index of each example."""
    rows, places = batch.labels.shape
    drawn = np.zeros((rows, 1 + places), np.float32)
    numbers = range(rows) if batch.indices is None else batch.indices.tolist()
    for row, number, labels in zip(drawn, numbers, batch.labels.cpu().numpy(), strict=True):
        random, is_target = np.random.default_rng((seed, number)), labels != IGNORE_INDEX
        row[0], row[1:][is_target] = random.random(), random.random(is_target.sum())
    found = copy_to_device(torch.from_numpy(drawn), batch.labels.device)
    return found[:, 0], found[:, 1:]


def hide(
    batch: Batch, mask: int, shares: Float[Tensor, " texts"], orders: Float[Tensor, "batch length"]
) -> tuple[Batch, Float[Tensor, "batch length"]]:
    """Hides k of the N targets of each text, and returns the weights of their losses, N / k, and 0 elsewhere.

    In expectation over k, uniform from 1 to N, and over the sets of k targets, the weighted sum of the losses is the
    mean of -ln p(x) over all orders in which the targets may be filled in, so at least -ln p(x) of their mixture
    (Hoogeboom et al. 2022, equation 4; the bound of Sahoo et al. 2024 is equal).

    Args:
        mask: the token of a hidden place.
        shares: number from 0 to 1 for each text: the fraction k / N, rounded up.
        orders: number from 0 to 1 for each position; the k targets with the lowest are hidden.
    """
    is_target, lengths = batch.labels != IGNORE_INDEX, torch.tensor(_lengths(batch), device=batch.labels.device)
    number = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)  # of the text, by position
    counts = torch.zeros_like(lengths).index_add(0, number, is_target.flatten().long())
    hidden = torch.minimum((shares * counts).floor(), counts - 1) + 1
    keys = 2.0 * number.double() + torch.where(is_target, orders, 1.5).flatten()  # sorted within each text
    ranks = keys.argsort().argsort() - (lengths.cumsum(0) - lengths)[number]
    is_hidden = is_target & (ranks < hidden[number]).view(is_target.shape)
    weights = is_hidden * (counts / hidden.clamp(min=1))[number].view(is_target.shape)
    return with_tokens(batch, batch.inputs.masked_fill(is_hidden, mask)), weights


def _lengths(batch: Batch) -> Sequence[int]:
    """The number of positions of each text; with padding, of each row."""
    return [batch.labels.shape[1]] * len(batch.labels) if batch.lengths is None else batch.lengths


def fill_in(
    tokens: Int[Tensor, "batch length"],
    is_hidden: Bool[Tensor, "batch length"],
    propose: Callable[[Int[Tensor, "batch length"]], Proposal],
    steps: int,
) -> Int[Tensor, "batch length"]:
    """Fills in the hidden places of each row, about equally many per step.

    Args:
        tokens: the tokens, with masks at the hidden places.
        propose: returns tokens for the hidden places, given what was filled in before.
        steps: number of steps; in each, floor(N (s + 1) / steps) - floor(N s / steps) of N places are filled in.
    """
    counts, is_open = is_hidden.sum(1, keepdim=True), is_hidden
    for step in range(steps):
        proposed, ranks = propose(tokens)
        now = is_open & (_ranks(ranks, is_open) < counts * (step + 1) // steps - counts * step // steps)
        tokens, is_open = torch.where(now, proposed, tokens), is_open & ~now
    return tokens


def propose_tokens(
    logits: Float[Tensor, "batch places vocab"],
    is_open: Bool[Tensor, "batch places"],
    end: int,
    choose: Callable[[Float[Tensor, "rows vocab"]], Int[Tensor, " rows"]],
) -> Int[Tensor, "batch places"]:
    """Chooses a token for each place. An open place may become the end token only if all later places are filled in or
    have the end token as well: otherwise, a text would often end too early.

    Args:
        is_open: places that are not filled in.
        end: the end token.
        choose: chooses a token by its logits.
    """
    shape = is_open.shape
    chosen = choose(logits.flatten(0, 1)).view(shape)
    may_end = torch.cat([(~is_open | (chosen == end))[:, 1:], torch.ones_like(is_open[:, :1])], 1)
    ends_too_early = (chosen == end) & ~may_end.flip(1).cumprod(1).flip(1).bool()
    others = logits.clone()
    others[..., end] = -torch.inf
    return torch.where(ends_too_early, choose(others.flatten(0, 1)).view(shape), chosen)


def with_tokens(batch: Batch, tokens: Int[Tensor, "batch length"]) -> Batch:
    """Returns a copy of a batch with other tokens."""
    changed = copy(batch)
    changed.inputs = tokens
    return changed


def _ranks(values: Float[Tensor, "batch length"], chosen: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """The rank of each chosen value in its row, from 0; those of others follow."""
    return values.masked_fill(~chosen, torch.inf).argsort(1).argsort(1)
