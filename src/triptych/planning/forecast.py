"""The doctor's forecast of a run: network, memory, FLOPs and time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle
from statistics import fmean

import torch
from torch.utils.flop_counter import FlopCounterMode

from triptych.assembly.make_task import check_network
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
"""Assumed fraction of a GPU's peak. Published runs reached 0.21 (GPT-3) to 0.46 (PaLM; Chowdhery et al. 2022, table
3); small networks reach much less."""
TRIED_ON_CPU, TRIED_ON_GPU = 3e11, 1e13
"""Maximum FLOPs of a batch that is timed."""
SHORTEST_TRIAL_S, LONGEST_TRIAL_S = 0.3, 5.0
"""Minimum and maximum duration of the timing."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a run. (The decided settings of a run are its ``Plan``, in ``triptych.planning.prepare``.)

    Attributes:
        network: network on the meta device.
        estimate: estimated batches.
        memory: memory on the chosen device.
        memory_on_gpus: memory on GPUs.
        precision: precision of the run.
        world_size: number of processes.
        flops: FLOPs of the whole run over all processes, including the optimizer.
        flops_of_step: FLOPs of the optimizer per step, which each process computes.
        recomputed: FLOPs of recomputed activations, as a fraction of ``flops``.
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
    def flops_per_step(self) -> float:
        """FLOPs per step, over all processes."""
        return self.flops / int(self.estimate.config.trainer.max_steps)


def make_forecast(estimate: BatchEstimate, world_size: int, device: Device) -> Forecast:
    """Makes the forecast of a run."""
    config = estimate.config
    if precision_of(config) not in PRECISIONS:
        raise ConfigError(f"trainer.precision={config.trainer.precision}: expected one of {', '.join(PRECISIONS)}")
    precision = PRECISIONS[precision_of(config)]
    network = check_network(config)
    unanswered = sum(step.unprojected for step in estimate.steps)
    flops = sum(TrainingCost(network).by_part(estimate.shapes, unanswered=unanswered).values())
    network = network.to(precision.dtype)
    optimizer = build(config, "optimizer")
    of_rows = partial(batch_bytes, network, precision, estimate)
    here, on_gpus = (cache(partial(of_rows, on_gpu=on)) for on in (device.is_gpu, True))
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
        flops=(flops / len(estimate.steps) * world_size + of_step) * config.trainer.max_steps,
        flops_of_step=of_step,
        recomputed=recomputed_share(network, next(iter(estimate.shapes))),
    )


def batch_bytes(
    network: Network, precision: Precision, estimate: BatchEstimate, rows: int, *, on_gpu: bool
) -> BatchBytes:
    """The memory of the longest batch on one device: by the formula on GPUs if it supports all parts, else measured.

    Args:
        network: network on the meta device, in the type of its weights.
        rows: rows of the batch per device.
    """
    if on_gpu and not unknown_parts(network) and not is_prefixed(network):
        return Activations(precision).of_batch(network, rows, *estimate.longest, padded=is_masked(network))
    embedding = network.embedding
    shape = (rows, *(embedding.image_shape if isinstance(embedding, PatchEmbedding) else estimate.longest))
    return BatchBytes(0, measure_peak(network, precision, shape, estimate.documents), 0)


def recomputed_share(network: Network, shape: BatchShape) -> float:
    """The FLOPs of recomputed activations as a fraction of all others. (torch stops recomputing as soon as it has all
    it needs.)"""
    if not any(stack.activation_checkpointing for stack in network.stacks):
        return 0.0
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(network.train()(**inputs_of(network, shape, torch.device("meta"))).sum())
    total: int = counter.get_total_flops()
    return total / TrainingCost(network).of_batch(shape) - 1


def computed_seconds(forecast: Forecast, device: Device) -> float | None:
    """The estimated duration of the run from the peak of a device; None: unknown."""
    peak = {4: device.single, 2: device.half}.get(forecast.precision.compute)
    if peak is None:
        return None
    steps = forecast.flops_of_step * int(forecast.estimate.config.trainer.max_steps)
    of_process = (forecast.flops - steps) * (1 + forecast.recomputed) / forecast.world_size + steps
    return of_process / (UTILISATION * peak)


def measured_seconds(forecast: Forecast, device: Device) -> float | None:
    """The measured duration of a step on this computer: forward, backward and optimizer step on batches with the shapes
    of the run, without loading, logging and communication. None: too large to measure."""
    config = forecast.estimate.config
    parts: int = config.trainer.accumulate_grad_batches
    shapes = list(forecast.estimate.shapes)
    of_batch = forecast.flops_per_step / (forecast.world_size * parts)
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
    step()  # the first pass is slower
    passes: list[float] = []
    for shape in cycle(shapes):
        passes.append(seconds(partial(train_on, shape)))
        if sum(passes) > LONGEST_TRIAL_S or (sum(passes) > SHORTEST_TRIAL_S and len(passes) >= len(shapes)):
            break
    return parts * fmean(passes) + seconds(step)
