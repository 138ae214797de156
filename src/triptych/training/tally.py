"""Counts what the training does, and logs how fast."""

import time
from collections import Counter

import lightning as L
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
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.shapes: Counter[BatchShape] = Counter()
        self.seconds = 0.0
        self._slots = 0
        self._logged = (0, 0, 0.0)  # tokens, slots and seconds at the last logging
        self._batch_started = 0.0

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
            pl_module.log("train/tokens_per_s", tokens / seconds if seconds else 0.0, prog_bar=True)
            pl_module.log("train/real_tokens", tokens / slots if slots else 0.0)


class CheckpointFacts(L.Callback):
    """Puts into each checkpoint what it takes to use it: configuration, tokenizer, classes; plain containers only.

    Args:
        config: the complete configuration.
        task: the task, for its tokenizer and what it knows of the corpus.
    """

    def __init__(self, config: dict[str, object], task: Task) -> None:
        self._facts = {
            "config": config,
            "tokenizer": task.tokenizer.to_json(),
            "corpus": task.corpus.as_plain(),
        }

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, object]
    ) -> None:
        """Adds them under the key "triptych"."""
        checkpoint["triptych"] = self._facts
