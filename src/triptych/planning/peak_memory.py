"""Measures the peak memory of a training step.

The forward and backward passes run on fake tensors, which have a shape, a type and a device, but no data. The sizes of
all live tensors are summed, so no part needs a formula.
"""

import weakref
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from triptych.models import PrefixLM
from triptych.models.flops import BatchShape, inputs_of
from triptych.nn import Network, PatchEmbedding, Targets
from triptych.nn.device_copy import copy_with_tensors
from triptych.tasks.precision import Precision

DocumentLengths = tuple[Sequence[int], Sequence[int]]
"""Lengths of the documents in a packed row, and in its source."""


class LiveMemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors that are computed within the context, each storage once.

    Args:
        own: earlier tensors, which are not counted.

    Attributes:
        now: current bytes.
        most: maximum so far.
    """

    def __init__(self, own: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.most: int = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in own}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return results

    def _free(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.now -= size


def measure_peak(
    network: Network, precision: Precision, shape: BatchShape, documents: DocumentLengths | None = None
) -> int:
    """The peak memory of forward, loss and backward, without parameters, buffers and gradients: tensors kept by
    autograd, copies for autocast, logits, and temporary memory of kernels. Gradients exist from the start, as with
    accumulated batches.

    Args:
        network: network on the meta device, in the type of its weights.
        shape: shape of the batch; with documents, their number instead of rows.
        documents: documents of a packed row, repeated as needed; None: no packing.
    """
    with FakeTensorMode():
        fake = copy_with_tensors(network, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype)).train()
        for parameter in fake.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        gradients = [parameter.grad for parameter in fake.parameters() if parameter.grad is not None]
        with LiveMemoryTracker([*fake.parameters(), *fake.buffers(), *gradients]) as living:
            torch.autograd.backward(training_loss(fake, precision, shape, torch.device("cpu"), documents))
    return int(living.most)


def training_loss(
    network: Network,
    precision: Precision,
    shape: BatchShape,
    device: torch.device,
    documents: DocumentLengths | None = None,
) -> Tensor:
    """The training loss of a batch of arbitrary tokens; see ``measure_peak`` for the arguments."""
    rows, lengths = shape[0], dict[str, Sequence[int]]()
    if documents is not None:
        names = ("lengths", "source_lengths")
        lengths = {name: [*islice(cycle(side), shape[0])] for name, side in zip(names, documents, strict=True) if side}
        shape = (1, *(sum(side) for side in lengths.values()), *([0] * (2 - len(lengths))))
    inputs = inputs_of(network, shape, device)
    if not is_masked(network):
        inputs.pop("mask", None)
    prefix = {"prefix": torch.ones(rows, dtype=torch.long, device=device)} if is_prefixed(network) else {}
    with torch.autocast(device.type, precision.products, enabled=precision.is_mixed):
        if network.head.pooling == "none":
            positions = torch.arange(shape[0] * shape[1], device=device)
            targets = Targets(positions, torch.zeros_like(positions), 0.0)
            loss: Tensor = network(**inputs, **lengths, **prefix, targets=targets)
            return loss / len(positions)
        logits = network(**inputs, **lengths).flatten(1)
        labels = torch.zeros(len(logits), dtype=torch.long, device=device)
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)


def is_prefixed(network: Network) -> bool:
    """Whether the network takes the length of the prefix as input."""
    return isinstance(network, PrefixLM)


def is_masked(network: Network) -> bool:
    """Whether the last stack gets a padding mask in training; a causal stack needs none, except for pooling."""
    is_image = isinstance(network.embedding, PatchEmbedding)  # without padding
    return not is_image and (network.architecture == "encoder_only" or network.head.pooling != "none")
