"""How much memory a training takes on each device. It is counted from shapes: the network is on the meta device, and
nothing of its size is ever allocated."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from triptych.nn import Network
from triptych.planning.activations import BatchBytes
from triptych.training.optimizers import step_on_meta

SINGLE = 4
"""Bytes of a number in float32."""
USABLE = 0.9
"""Share of a device's memory that is counted on; CUDA itself, the work space of kernels and gaps take the rest."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one process holds in the memory of its device at the worst moment, in bytes.

    Attributes:
        weights: with the tables that are not trained.
        gradients: of them.
        optimizer: its state.
        average: of the weights, a copy; of a schedule-free optimizer: the weights that its average takes the place of.
        exchange: DDP: the buckets in which gradients are averaged; FSDP: what is whole for a moment.
        copies: of the matrices in the type of the matrix products, under autocast; 0 where it was measured.
        activations: what autograd keeps; where it was measured, all that is alive at the worst moment.
        logits: what the loss and its gradient need besides; 0 where it was measured.
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
        """All of it."""
        return sum(asdict(self).values())

    @property
    def state(self) -> int:
        """What does not depend on the batch."""
        return self.total - self.activations - self.logits


@dataclass(frozen=True, slots=True)
class Memory:
    """What a training takes, by the number of processes.

    Attributes:
        network: on the meta device, in the type of its weights.
        optimizer: bytes of its state (see ``optimizer_bytes``).
        of_rows: what a batch of so many rows takes on one device; measured, or by the formula.
        average: bytes of the average of the weights (see ``average_bytes`` and ``ScheduleFreeAdamW``); 0: none.
    """

    network: Network
    optimizer: int
    of_rows: Callable[[int], BatchBytes]
    average: int

    def ddp(self, processes: int, rows: int) -> Footprint:
        """Each process has everything, and a share of the rows.

        Args:
            processes: that train together; 1: no DDP.
            rows: of a batch, over all processes.
        """
        weights, gradients = stored_bytes(self.network), gradient_bytes(self.network)
        return Footprint(
            weights=weights,
            gradients=gradients,
            optimizer=self.optimizer,
            average=self.average,
            exchange=gradients if processes > 1 else 0,
            **self.of_rows(-(-rows // processes))._asdict(),
        )

    def fsdp(self, processes: int, rows: int) -> Footprint:
        """Weights, gradients and the optimizer's state are cut into equal shares (Zhao et al. 2023). Whole at a time
        are the weights outside of the blocks, and two blocks (one at work, the next on its way), each with its
        gradient; in a validation, which keeps no activations, all weights.

        Args:
            processes: that train together.
            rows: of a batch, over all processes.
        """
        blocks = [gradient_bytes(block) for stack in self.network.stacks for block in stack.layers]
        weights, gradients = stored_bytes(self.network), gradient_bytes(self.network)
        gathered = 2 * (gradients - sum(blocks) + 2 * max(blocks))
        batch = self.of_rows(-(-rows // processes))
        return Footprint(
            weights=-(-weights // processes),
            gradients=-(-gradients // processes),
            optimizer=-(-self.optimizer // processes),
            average=-(-self.average // processes),
            exchange=max(gathered, gradients - batch.activations - batch.logits) if processes > 1 else 0,
            **batch._asdict(),
        )


def smallest(footprint: Callable[[int, int], Footprint], rows: int, memory: int, *, evenly: bool = True) -> int | None:
    """The least number of devices on which a training fits.

    Args:
        footprint: by number of processes and rows.
        rows: of a batch, over all processes.
        memory: of each device, bytes.
        evenly: whether each has equally many rows.

    Returns:
        None: it fits on none, even with one row a device.
    """
    counts = (count for count in range(1, rows + 1) if rows % count == 0 or not evenly)
    return next((count for count in counts if footprint(count, rows).total <= USABLE * memory), None)


def optimizer_bytes(network: Network, make: Callable[[nn.Module], torch.optim.Optimizer]) -> int:
    """What the optimizer keeps from update to update, after a step on the meta device.

    Args:
        network: on the meta device; gets gradients.
        make: the optimizer of a module.
    """
    optimizer = step_on_meta(network, make)
    return sum(_bytes(v for v in state.values() if isinstance(v, Tensor)) for state in optimizer.state.values())


def average_bytes(network: Network) -> int:
    """Bytes of a moving average of the weights, which is in float32 at least."""
    return sum(x.numel() * max(x.itemsize, SINGLE) for x in (*network.parameters(), *network.buffers()))


def stored_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return _bytes(module.parameters()) + _bytes(module.buffers())


def gradient_bytes(module: nn.Module) -> int:
    """Bytes of the gradients of all that is trained."""
    return _bytes(p for p in module.parameters() if p.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
