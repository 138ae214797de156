"""Counts what the training does, and logs how fast."""

import time
from collections import Counter
from collections.abc import Mapping
from copy import copy
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch.optim import Optimizer

from triptych.accounting import BatchShape, shape_of
from triptych.data import Batch
from triptych.tasks import Task


class Tally(L.Callback):
    """Logs the learning rate, tokens per second and the share of real tokens, and keeps the sums for the record.

    Attributes:
        tokens: real tokens that this process has trained on.
        shapes: how many batches of each shape it has trained on.
        seconds: time spent in training batches.
        wall_time: seconds since the start of the training, validations included; without the times in between, where
            a run went on.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.shapes: Counter[BatchShape] = Counter()
        self.seconds = 0.0
        self._slots = 0
        self._logged = (0, 0, 0.0)  # tokens, slots and seconds at the last logging
        self._batch_started = 0.0
        self._started, self._earlier = time.perf_counter(), 0.0

    @property
    def wall_time(self) -> float:
        """Seconds since the start of the training."""
        return self._earlier + time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """The counts of all ranks, as plain containers; every rank has to call it."""
        total = self.of_all_ranks()
        return {
            "tokens": total.tokens,
            "shapes": [[*shape, count] for shape, count in total.shapes.items()],
            "seconds": total.seconds,
            "slots": total._slots,
            "logged": list(total._logged),
            "wall_time": total.wall_time,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on counting from there; rank 0 does for all."""
        self._earlier = state_dict["wall_time"]
        if dist.is_initialized() and dist.get_rank():
            return
        self.tokens, self.seconds, self._slots = (state_dict[key] for key in ("tokens", "seconds", "slots"))
        self.shapes = Counter({tuple(shape): count for *shape, count in state_dict["shapes"]})
        tokens, slots, seconds = state_dict["logged"]
        self._logged = (tokens, slots, seconds)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock of the whole."""
        self._started = time.perf_counter()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Starts the clock."""
        self._batch_started = time.perf_counter()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Logs the learning rate of this update."""
        assert isinstance(pl_module, Task)
        if pl_module.is_logged(trainer.global_step + 1):
            pl_module.log("lr", optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Counts."""
        self.seconds += time.perf_counter() - self._batch_started
        self.tokens += batch.num_real
        self._slots += batch.num_slots
        self.shapes[shape_of(batch)] += 1
        assert isinstance(pl_module, Task)
        ends_update = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if ends_update and pl_module.is_logged(trainer.global_step):
            now = (self.tokens, self._slots, self.seconds)
            tokens, slots, seconds = (new - old for new, old in zip(now, self._logged, strict=True))
            self._logged = now
            counts = torch.tensor([tokens, slots], device=pl_module.device)
            tokens, slots = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
            pl_module.log("train/tokens_per_s", tokens / seconds if seconds else 0.0, prog_bar=True)
            pl_module.log("train/real_tokens", tokens / slots if slots else 0.0)

    def of_all_ranks(self) -> "Tally":
        """The sums over all processes, each of which has to call it; the seconds are this one's."""
        if not dist.is_initialized():
            return self
        mine = (
            self.tokens,
            self._slots,
            self._logged,
            self.shapes,
        )  # not the callback: Lightning ties it to the network
        parts = [mine] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        tokens, slots, logged, shapes = zip(*parts, strict=True)
        total = copy(self)
        total.tokens, total._slots, total.shapes = sum(tokens), sum(slots), sum(shapes, Counter())
        total._logged = (sum(done[0] for done in logged), sum(done[1] for done in logged), self._logged[2])
        return total


def checkpoint_facts(config: Mapping[str, object], task: Task) -> dict[str, object]:
    """What it takes to use the weights of a task: configuration, tokenizer, classes; plain containers only.

    Args:
        config: the complete configuration.
        task: the task, for its tokenizer and what it knows of the corpus.
    """
    return {
        "config": config,
        "tokenizer": task.tokenizer.to_json(),
        "special_tokens": task.tokenizer.special.as_plain(),
        "corpus": task.corpus.as_plain(),
    }


class CheckpointFacts(L.Callback):
    """Puts the facts above into each checkpoint, under the key "triptych".

    Args:
        config: the complete configuration.
        task: the task.
    """

    def __init__(self, config: Mapping[str, object], task: Task) -> None:
        self._facts = checkpoint_facts(config, task)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, object]
    ) -> None:
        """Adds them."""
        checkpoint["triptych"] = self._facts
