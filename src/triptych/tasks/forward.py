"""How a batch goes into each architecture."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.data import Batch
from triptych.nn import Documents, Network, Targets


def run_network(
    network: Network, batch: Batch, targets: Targets | None = None, *, leading: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "*rows_length_outputs"]:
    """The network's logits, or the sum of its losses.

    Args:
        targets: what it should answer; None: logits.
        leading: how many of the first tokens of each text are global, in attention that has such; None: one.
    """
    answered: Tensor
    # Where each position is scored by itself, a causal stack needs no mask for padding on the right; the plain
    # triangle has a faster kernel.
    is_pooled = network.head.pool != "none"
    mask = batch.mask if is_pooled or network.architecture == "encoder_only" else None
    lengths = {"lengths": batch.lengths, "leading": leading}
    if (token_types := token_types_of(network, batch)) is not None:
        answered = network(batch.tokens, mask, token_types=token_types, **lengths, targets=targets)
    elif network.architecture == "prefix_decoder":
        prefix = batch.prefix + 1  # the state of its last token is that of the first label behind it
        sources = {"source": batch.source, "source_mask": batch.source_mask}
        answered = network(batch.tokens, mask, prefix=prefix, lengths=batch.lengths, **sources, targets=targets)
    elif batch.source is not None and network.architecture == "decoder_only":
        sources = {"source": batch.source, "source_mask": batch.source_mask}
        answered = network(batch.tokens, mask, **sources, targets=targets)
    elif batch.source is None:
        answered = network(batch.tokens, mask, **lengths, targets=targets)
    else:
        lengths |= {"source_lengths": batch.source_lengths}
        answered = network(batch.source, batch.tokens, batch.source_mask, mask, **lengths, targets=targets)
    return answered


def reads_token_types(network: Network) -> bool:
    """Whether the network tells the two texts of a pair apart."""
    return network.architecture == "encoder_only" and network.num_token_types > 1


def token_types_of(network: Network, batch: Batch) -> Int[Tensor, "batch length"] | None:
    """0 in the first text and what surrounds it, 1 in the second (Devlin et al. 2019, section 3). None: the network
    does not read types."""
    if not reads_token_types(network):
        return None
    if batch.lengths is None:
        places, starts = torch.arange(batch.tokens.shape[1], device=batch.prefix.device), batch.prefix[:, None]
    else:
        documents = Documents(batch.lengths, batch.prefix.device)
        places, starts = documents.positions[None], batch.prefix[documents.numbers][None]
    return ((places >= starts) & (starts > 0)).long()
