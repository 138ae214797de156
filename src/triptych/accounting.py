"""What a network has and costs: parameters and floating-point operations."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from triptych.data.batch import Batch
from triptych.nn import Network

BatchShape = tuple[int, ...]
"""Rows, positions of ``tokens``, positions of ``source`` (0 without one); of images rows, channels, height, width."""


def count_parameters(network: Network) -> tuple[int, int]:
    """All trainable parameters, and those outside of the embeddings of tokens and positions (a tied output layer is an
    embedding).

    Args:
        network: one of the three architectures; tied parameters count once.
    """
    embedding = {*network.embedding.parameters(), *(stack.positions for stack in network.stacks)}
    trainable = [p for p in network.parameters() if p.requires_grad]
    return sum(p.numel() for p in trainable), sum(p.numel() for p in trainable if p not in embedding)


def parameters_by_part(network: Network) -> dict[str, int]:
    """All trainable parameters by where they stand: embedding, encoder, decoder, head. What is tied counts in the first
    of them that has it.

    Args:
        network: one of the three architectures.
    """
    seen: set[Tensor] = set()
    counts = {}
    for name in ("embedding", "encoder", "decoder", "head"):
        if hasattr(network, name):
            own = {p for p in getattr(network, name).parameters() if p.requires_grad} - seen
            counts[name] = sum(p.numel() for p in own)
            seen |= own
    return counts


def weights_sha256(network: Network) -> str:
    """Equal for bitwise equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def shape_of(batch: Batch) -> BatchShape:
    """What the cost of a batch depends on."""
    if batch.mask is None:
        return tuple(batch.tokens.shape)
    return (*batch.tokens.shape, 0 if batch.source is None else batch.source.shape[1])


def training_flops(network: Network, shapes: Mapping[BatchShape, int]) -> int:
    """Operations of the matrix products, forward and backward, of the given numbers of batches of each shape.

    Padding is counted, and so are the pairs that a causal mask hides. torch's counter sees fused attention on the meta
    device only.

    Args:
        network: on the meta device.
        shapes: how many batches of each shape there were.
    """
    total = 0
    for shape, count in shapes.items():
        with FlopCounterMode(display=False) as counter:
            network(*inputs_of(shape, torch.device("meta"))).sum().backward()
        total += count * counter.get_total_flops()
    return total


def inputs_of(shape: BatchShape, device: torch.device) -> tuple[Tensor, ...]:
    """What a network takes of a batch of this shape, all of it real; every token is the same.

    Args:
        shape: of the batch.
        device: of the tensors; on the meta device they cost nothing.
    """
    if len(shape) == 4:
        return (torch.zeros(shape, device=device),)
    rows, *lengths = shape
    sides = [(rows, length) for length in reversed(lengths) if length]  # the source first
    tokens = [torch.zeros(side, dtype=torch.long, device=device) for side in sides]
    masks = [torch.ones(side, dtype=torch.bool, device=device) for side in sides]
    return (*tokens, *masks)
