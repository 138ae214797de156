"""The memory of a run on each device, computed from shapes: the network is on the meta device and never allocated."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from triptych.nn import Network
from triptych.planning.activations import BatchBytes
from triptych.training.optimizers import step_on_meta

SINGLE = 4
"""Bytes per float32 number."""
USABLE = 0.9
"""Usable fraction of a device's memory; the rest is for CUDA, the workspace of kernels and fragmentation."""


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """The peak memory of one process on its device, in bytes.

    Attributes:
        weights: weights and buffers.
        gradients: gradients of the weights.
        optimizer: optimizer state.
        average: moving average of the weights, or the weights behind the average of a schedule-free optimizer.
        exchange: DDP: buckets of gradients; FSDP: gathered weights and gradients.
        copies: copies of the weights in the compute type, under autocast; 0 if measured.
        activations: tensors that autograd keeps; if measured, the peak of all tensors.
        logits: further memory of the loss and its gradient; 0 if measured.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    exchange: int
    copies: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """The sum."""
        return sum(asdict(self).values())

    @property
    def state(self) -> int:
        """The memory that does not depend on the batch."""
        return self.total - self.activations - self.logits


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a run, by number of processes.

    Attributes:
        network: network on the meta device, in the type of its weights.
        optimizer: bytes of the optimizer state.
        of_rows: memory of a batch with a number of rows on one device; measured, or by the formula.
        average: bytes of the average of the weights; 0: none.
    """

    network: Network
    optimizer: int
    of_rows: Callable[[int], BatchBytes]
    average: int

    def ddp(self, processes: int, rows: int) -> MemoryBreakdown:
        """With DDP, each process holds all weights and some of the rows.

        Args:
            processes: number of processes; 1: no DDP.
            rows: rows per batch, over all processes.
        """
        weights, gradients = stored_bytes(self.network), gradient_bytes(self.network)
        batch = self.of_rows(-(-rows // processes))
        exchange = gradients if processes > 1 else 0
        return MemoryBreakdown(weights, gradients, self.optimizer, self.average, exchange, **batch._asdict())

    def fsdp(self, processes: int, rows: int) -> MemoryBreakdown:
        """With FSDP, weights, gradients and optimizer state are sharded equally (Zhao et al. 2023). Gathered at a time
        are the weights outside of the blocks and two blocks (the current one and a prefetched one), with their
        gradients; in validation, which keeps no activations, all weights."""
        blocks = [gradient_bytes(block) for stack in self.network.stacks for block in stack.layers]
        weights, gradients = stored_bytes(self.network), gradient_bytes(self.network)
        gathered = 2 * (gradients - sum(blocks) + 2 * max(blocks))
        batch = self.of_rows(-(-rows // processes))
        exchange = max(gathered, gradients - batch.activations - batch.logits) if processes > 1 else 0
        sharded = (weights, gradients, self.optimizer, self.average)
        weights, gradients, optimizer, average = (-(-whole // processes) for whole in sharded)
        return MemoryBreakdown(weights, gradients, optimizer, average, exchange, **batch._asdict())


def smallest_gpu_count(
    footprint: Callable[[int, int], MemoryBreakdown], rows: int, memory: int, *, evenly: bool = True
) -> int | None:
    """The smallest number of devices on which a run fits; None: it does not fit even with one row per device.

    Args:
        footprint: memory by number of processes and rows.
        rows: rows per batch, over all processes.
        memory: bytes per device.
        evenly: whether all devices must have the same number of rows.
    """
    counts = (count for count in range(1, rows + 1) if rows % count == 0 or not evenly)
    return next((count for count in counts if footprint(count, rows).total <= USABLE * memory), None)


def optimizer_bytes(network: Network, make: Callable[[nn.Module], torch.optim.Optimizer]) -> int:
    """Bytes of the optimizer state, after a step on the meta device.

    Args:
        network: network on the meta device; receives gradients.
        make: makes the optimizer.
    """
    optimizer = step_on_meta(network, make)
    return sum(_bytes(v for v in state.values() if isinstance(v, Tensor)) for state in optimizer.state.values())


def average_bytes(network: Network) -> int:
    """Bytes of a moving average of the weights, at least in float32."""
    return sum(x.numel() * max(x.itemsize, SINGLE) for x in (*network.parameters(), *network.buffers()))


def stored_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return _bytes(module.parameters()) + _bytes(module.buffers())


def gradient_bytes(module: nn.Module) -> int:
    """Bytes of the gradients of all trained parameters."""
    return _bytes(p for p in module.parameters() if p.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
