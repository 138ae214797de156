"""Counting and logging the tokens, FLOPs and time of training.

Tested by tests/tasks/test_task.py and tests/models/test_flops.py.
"""

import time
from collections import Counter
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from triptych.data import Batch
from triptych.models.flops import BatchShape, TrainingCost
from triptych.nn import Network
from triptych.nn.network import count_positions
from triptych.training.lightning_module import TrainingModule
from triptych.training.optimizers import optimizer_flops


def shape_of(batch: Batch, network: Network) -> BatchShape:
    """Returns the shape that determines the cost of a batch: if packed, a row of mean length per document."""
    if batch.mask is None:
        return tuple(batch.inputs.shape)
    if batch.lengths is not None:
        sides = (batch.lengths, batch.source_lengths or [0])
        return (len(batch.lengths), *(max(round(fmean(side)), min(max(side), 1)) for side in sides))
    source = getattr(network, "source_embedding", None) or network.embedding
    length = count_positions(network.embedding, batch.inputs)
    return (len(batch.inputs), length, 0 if batch.source is None else count_positions(source, batch.source))


class CostTracker(L.Callback):
    """Logs the learning rate, tokens per second, the fraction of non-padding tokens, and the cumulative cost.

    Each log row contains the tokens, FLOPs and time so far. The sums are kept for the record.

    Args:
        network: network on the meta device, for the cost of batches.
        optimizer: makes the optimizer of a network, for the cost of steps.

    Attributes:
        cost: computes the cost of batches.
        flops_of_step: FLOPs of an optimizer step; all processes compute the same step, which counts once.
        flops: FLOPs of the batches of this process.
        tokens: non-padding tokens that this process has trained on.
        shapes: number of batches of each shape that this process has trained on.
        unanswered: number of positions in these batches for which the head was not computed.
        seconds: time spent in training batches.
        began: when the first process of the run began; None if an older checkpoint does not say it.
        wall_time: seconds of the run so far, including validation, without the time between stop and resume.
    """

    def __init__(self, network: Network, optimizer: Callable[[nn.Module], Optimizer]) -> None:
        self.cost = TrainingCost(network)
        self.flops_of_step = optimizer_flops(network, optimizer)
        self.flops = 0
        self.tokens = 0
        self.shapes: Counter[BatchShape] = Counter()
        self.unanswered = 0
        self.seconds = 0.0
        self._slots = 0
        self._logged = (0, 0, 0.0)  # tokens and slots of all ranks, and seconds, at the last log row
        self._batch_started = 0.0
        self.began: str | None = datetime.now(UTC).isoformat(timespec="seconds")
        self._started, self._earlier = time.perf_counter(), 0.0
        self._ended: float | None = None

    @property
    def non_padding_fraction(self) -> float:
        """The fraction of non-padding tokens among the computed positions."""
        return self.tokens / self._slots if self._slots else 0.0

    def flops_by_part(self, num_steps: int) -> dict[str, int]:
        """Returns the training FLOPs by part of the network, and those of the optimizer, if it has any.

        Args:
            num_steps: number of steps so far.
        """
        flops = self.cost.by_part(self.shapes, unanswered=self.unanswered)
        return flops | ({"optimizer": num_steps * self.flops_of_step} if self.flops_of_step else {})

    @property
    def mean_lengths(self) -> tuple[int, int]:
        """The mean numbers of positions of a row of text, and of its source, over all rows."""
        rows = sum(count * shape[0] for shape, count in self.shapes.items())
        length, source = (sum(n * shape[0] * shape[i] for shape, n in self.shapes.items()) / rows for i in (1, 2))
        return max(round(length), 1), round(source)

    @property
    def wall_time(self) -> float:
        """Seconds of the run so far."""
        return self._earlier + (self._ended or time.perf_counter()) - self._started

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts of all ranks as plain containers; every rank must call it."""
        total = self.of_all_ranks()
        return {
            "tokens": total.tokens,
            "shapes": [[*shape, count] for shape, count in total.shapes.items()],
            "unanswered": total.unanswered,
            "seconds": total.seconds,
            "slots": total._slots,
            "logged": list(total._logged),
            "wall_time": total.wall_time,
            "began": self.began,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts from a checkpoint; rank 0 takes those of all ranks."""
        self._earlier, self.began = state_dict["wall_time"], state_dict.get("began")
        if dist.is_initialized() and dist.get_rank():
            return
        self.tokens, self.seconds, self._slots = (state_dict[key] for key in ("tokens", "seconds", "slots"))
        self.shapes = Counter({tuple(shape): count for *shape, count in state_dict["shapes"]})
        self.unanswered = state_dict["unanswered"]
        self.flops = sum(self.cost.by_part(self.shapes, unanswered=self.unanswered).values())
        tokens, slots, seconds = state_dict["logged"]
        self._logged = (tokens, slots, seconds)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock of the run."""
        self._started = time.perf_counter()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stops the clock of the run."""
        self._ended = time.perf_counter()

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        """Starts the clock of the batch."""
        self._batch_started = time.perf_counter()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Logs the learning rate of this step."""
        assert isinstance(pl_module, TrainingModule)
        if pl_module.is_logged(trainer.global_step + 1):
            pl_module.log("lr", optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        """Counts the batch, and logs the cost so far."""
        self.seconds += time.perf_counter() - self._batch_started
        assert isinstance(pl_module, TrainingModule)
        shape, unanswered = shape_of(batch, pl_module.network), pl_module.task.num_unprojected(batch)
        self.tokens += batch.num_nonpadding
        self._slots += batch.num_with_padding
        self.shapes[shape] += 1
        self.unanswered += unanswered
        self.flops += self.cost.of_batch(shape, unanswered=unanswered)
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and pl_module.is_logged(trainer.global_step):
            now = (*self._log_spent(trainer, pl_module), self.seconds)
            tokens, slots, seconds = (new - old for new, old in zip(now, self._logged, strict=True))
            self._logged = now
            pl_module.log("train/tokens_per_second", tokens / seconds if seconds else 0.0, prog_bar=True)
            pl_module.log("train/non_padding_fraction", tokens / slots if slots else 0.0)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs the cost so far."""
        self._log_spent(trainer, pl_module)

    on_test_epoch_end = on_validation_epoch_end

    def _log_spent(self, trainer: L.Trainer, pl_module: L.LightningModule) -> tuple[int, int]:
        """Logs the training cost of all ranks, and returns their tokens and slots; every rank must call it."""
        high, low = divmod(self.flops, 2**32)  # the FLOPs of a large run exceed 64 bits
        counts = torch.tensor([self.tokens, self._slots, high, low], device=pl_module.device)
        tokens, slots, high, low = map(int, trainer.strategy.reduce(counts, reduce_op="sum").tolist())
        flops = (high << 32) + low + trainer.global_step * self.flops_of_step
        spent = {"tokens": tokens, "train_flops": flops, "elapsed_s": self.wall_time}
        # in float64, and on the CPU, since the device may not support it
        pl_module.log_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in spent.items()})
        return tokens, slots

    def of_all_ranks(self) -> "CostTracker":
        """Returns the sums over all processes; every process must call it. The seconds are those of this process."""
        if not dist.is_initialized():
            return self
        # not the callback itself, which Lightning links to the network
        mine = (self.tokens, self._slots, self.shapes, self.unanswered, self.flops)
        parts = [mine] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        tokens, slots, shapes, unanswered, flops = zip(*parts, strict=True)
        total = copy(self)
        total.tokens, total._slots, total.shapes = sum(tokens), sum(slots), sum(shapes, Counter())
        total.unanswered, total.flops = sum(unanswered), sum(flops)
        return total
