"""The doctor's forecast of a training: its network, its memory, its operations and its time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle
from statistics import fmean

import torch
from torch.utils.flop_counter import FlopCounterMode

from triptych.assembly.network import check_network
from triptych.config import ConfigError, build, precision_of
from triptych.models.flops import BatchShape, TrainingCost, inputs_of
from triptych.nn import Network, PatchEmbedding
from triptych.planning.activations import Activations, BatchBytes, unknown_parts
from triptych.planning.batch_shapes import BatchEstimate
from triptych.planning.gpus import Device
from triptych.planning.memory import Memory, average_bytes, optimizer_bytes, stored_bytes
from triptych.planning.peak_memory import is_masked, is_prefixed, measure_peak, training_loss
from triptych.tasks.precision import PRECISIONS, Precision
from triptych.training.optimizers import ScheduleFreeAdamW, optimizer_flops

UTILISATION = 0.3
"""Share of a GPU's peak that a training is assumed to reach. Published ones reached 0.21 (GPT-3) to 0.46 (PaLM), by
Chowdhery et al. 2022, table 3; small networks reach much less."""
TRIED_ON_CPU, TRIED_ON_GPU = 3e11, 1e13
"""The most operations of a batch that is tried out here."""
SHORTEST_TRIAL_S, LONGEST_TRIAL_S = 0.3, 5.0
"""How long trying out takes."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a training will be. (What a run has decided is its ``Plan``, in ``triptych.planning.prepare``.)

    Attributes:
        network: on the meta device.
        estimate: of the data.
        memory: by number of processes, on the device that was asked about.
        memory_on_gpus: the same on GPUs.
        precision: of the training.
        world_size: processes that train together.
        flops: operations of the whole training, over all processes, with the optimizer's.
        flops_of_step: those of a step of the optimizer, which each process computes.
        recomputed: operations that are done once more, since the backward pass computes blocks anew, over ``flops``.
    """

    network: Network
    estimate: BatchEstimate
    memory: Memory
    memory_on_gpus: Memory
    precision: Precision
    world_size: int
    flops: float
    flops_of_step: int
    recomputed: float

    @property
    def flops_of_update(self) -> float:
        """Operations of one update, over all processes."""
        return self.flops / int(self.estimate.config.trainer.max_steps)


def make_forecast(estimate: BatchEstimate, world_size: int, device: Device) -> Forecast:
    """The forecast of a training."""
    config = estimate.config
    if precision_of(config) not in PRECISIONS:
        raise ConfigError(f"trainer.precision={config.trainer.precision}: no plan; only for {', '.join(PRECISIONS)}")
    precision = PRECISIONS[precision_of(config)]
    network = check_network(config)
    flops = sum(TrainingCost(network).by_part(estimate.shapes, unanswered=estimate.unanswered).values())
    network = check_network(config).to(precision.dtype)
    optimizer = build(config, "optimizer")
    here, on_gpus = (
        cache(partial(batch_bytes, network, precision, estimate, on_gpu=on)) for on in (device.is_gpu, True)
    )
    of_step = optimizer_flops(network, optimizer)
    average = stored_bytes(network) if isinstance(optimizer, ScheduleFreeAdamW) else 0
    average += average_bytes(network) if "ema" in config.callbacks else 0
    memory = Memory(network, optimizer_bytes(network, optimizer), here, average)
    return Forecast(
        network=network,
        estimate=estimate,
        memory=memory,
        memory_on_gpus=replace(memory, of_rows=on_gpus),
        precision=precision,
        world_size=world_size,
        flops=(flops / estimate.num_updates * world_size + of_step) * config.trainer.max_steps,
        flops_of_step=of_step,
        recomputed=recomputed_share(network, next(iter(estimate.shapes))),
    )


def batch_bytes(
    network: Network, precision: Precision, estimate: BatchEstimate, rows: int, *, on_gpu: bool
) -> BatchBytes:
    """What the longest batch takes on one device: measured, but on GPUs by the formula, where it knows all parts.

    Args:
        network: on the meta device, in the type of its weights.
        rows: of the batch, on one device.
    """
    if on_gpu and not unknown_parts(network) and not is_prefixed(network):
        return Activations(precision).of_batch(network, rows, *estimate.longest, padded=is_masked(network))
    embedding = network.embedding
    shape = (rows, *(embedding.image_shape if isinstance(embedding, PatchEmbedding) else estimate.longest))
    return BatchBytes(0, measure_peak(network, precision, shape, estimate.documents), 0)


def recomputed_share(network: Network, shape: BatchShape) -> float:
    """Operations that are done once more, since the backward pass computes blocks anew (torch ends that as soon as it
    has what it needs), over all others.

    Args:
        network: on the meta device.
    """
    if not any(stack.activation_checkpointing for stack in network.stacks):
        return 0.0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(network.train()(**inputs_of(network, shape, torch.device("meta"))).sum())
    total: int = counter.get_total_flops()
    return total / TrainingCost(network).of_batch(shape) - 1


def computed_seconds(forecast: Forecast, device: Device) -> float | None:
    """Of the whole training, from the peak of a device; None: it is not known."""
    peak = {4: device.single, 2: device.half}.get(forecast.precision.compute)
    if peak is None:
        return None
    steps = forecast.flops_of_step * int(forecast.estimate.config.trainer.max_steps)
    of_process = (forecast.flops - steps) * (1 + forecast.recomputed) / forecast.world_size + steps
    return of_process / (UTILISATION * peak)


def measured_seconds(forecast: Forecast, device: Device) -> float | None:
    """Of one update, by trying it out on this machine: forward, backward and the optimizer's step on batches of the
    shapes that the training will have, without what stands around them (loading, logging, communication).

    Returns:
        None: it is too large to be tried out.
    """
    config = forecast.estimate.config
    parts: int = config.trainer.accumulate_grad_batches
    shapes = list(forecast.estimate.shapes)
    of_batch = forecast.flops_of_update / (forecast.world_size * parts)
    is_large = forecast.memory.ddp(1, shapes[0][0]).total > 0.5 * device.memory
    if is_large or of_batch > (TRIED_ON_GPU if device.is_gpu else TRIED_ON_CPU):
        return None
    place = torch.device("cuda" if device.is_gpu else "cpu")
    network: Network = build(config, "model").to(place, forecast.precision.dtype).train()
    optimizer = build(config, "optimizer")(network)

    def train_on(shape: BatchShape) -> None:
        torch.autograd.backward(training_loss(network, forecast.precision, shape, place))

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def seconds(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        if device.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    train_on(shapes[0])
    step()  # the first of everything is slow
    passes: list[float] = []
    for shape in cycle(shapes):
        passes.append(seconds(partial(train_on, shape)))
        if sum(passes) > LONGEST_TRIAL_S or (sum(passes) > SHORTEST_TRIAL_S and len(passes) >= len(shapes)):
            break
    return parts * fmean(passes) + seconds(step)
