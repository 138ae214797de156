"""The forward pass of a batch through each architecture.

Tested by tests/tasks/test_task.py and tests/report/test_attention_maps.py.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triptych.data import Batch
from triptych.nn import Network, PackedLayout, Targets


def run_network(
    network: Network, batch: Batch, targets: Targets | None, num_global_tokens: Int[Tensor, " rows"] | None
) -> Float[Tensor, "*rows_length_outputs"]:
    """Returns the logits of the network, or the sum of its losses.

    Args:
        targets: targets of the loss; None: return logits.
        num_global_tokens: number of leading global tokens of each text, for attention with global tokens; None: one.
    """
    answered: Tensor
    # Without pooling, a causal stack needs no mask for padding on the right; the plain triangle has a faster kernel.
    mask = batch.mask if network.head.pooling != "none" or network.architecture == "encoder_only" else None
    lengths = {"lengths": batch.lengths, "num_global_tokens": num_global_tokens}
    sources = {"source": batch.source, "source_mask": batch.source_mask}
    if (token_types := token_types_of(network, batch)) is not None:
        answered = network(batch.inputs, mask, token_types=token_types, **lengths, targets=targets)
    elif network.architecture == "prefix_lm":
        prefix = batch.prefix + 1  # the state of its last token predicts the first label after it
        answered = network(batch.inputs, mask, prefix=prefix, lengths=batch.lengths, **sources, targets=targets)
    elif batch.is_bidirectional:
        assert batch.mask is not None
        whole = batch.mask.sum(1) if batch.lengths is None else torch.tensor(batch.lengths, device=batch.inputs.device)
        answered = network(batch.inputs, prefix=whole, lengths=batch.lengths, targets=targets)
    elif batch.source is not None and network.architecture == "decoder_only":
        answered = network(batch.inputs, mask, **sources, targets=targets)
    elif batch.source is None:
        answered = network(batch.inputs, mask, **lengths, targets=targets)
    else:
        lengths |= {"source_lengths": batch.source_lengths}
        answered = network(batch.source, batch.inputs, batch.source_mask, mask, **lengths, targets=targets)
    return answered


def reads_token_types(network: Network) -> bool:
    """Returns whether the network has token types, which distinguish the two texts of a pair."""
    return network.architecture == "encoder_only" and network.num_token_types > 1


def token_types_of(network: Network, batch: Batch) -> Int[Tensor, "batch length"] | None:
    """Returns 0 for the first text, 1 for the second (Devlin et al. 2019, section 3); None: no token types."""
    if not reads_token_types(network):
        return None
    if batch.lengths is None:
        places, starts = torch.arange(batch.inputs.shape[1], device=batch.prefix.device), batch.prefix[:, None]
    else:
        documents = PackedLayout(batch.lengths, batch.prefix.device)
        places, starts = documents.positions[None], batch.prefix[documents.numbers][None]
    return ((places >= starts) & (starts > 0)).long()
