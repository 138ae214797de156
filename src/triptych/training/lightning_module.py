"""The LightningModule of all tasks."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchmetrics import Metric

from triptych.data import Batch
from triptych.tasks import Predictions, Task, TestPrediction
from triptych.tasks.exact_sums import ExactMean
from triptych.training.nonfinite import NonFiniteSteps

STAGES = ("val", "test")
COUNTED = ("k", "weight_sum", "lr_max", "scheduled_lr")
"""State that a schedule-free optimizer keeps in its parameter groups, which otherwise contain only settings."""


class TrainingModule(L.LightningModule):
    """Trains, validates and tests a task: steps, optimizer, schedule and logging.

    The task defines the loss and the metrics. A checkpoint contains the weights of its network as ``network.*``.

    Attributes:
        task: the task, a plain object that is not registered as a submodule.
        matrix_metrics: metrics of the last evaluation that are not scalars, such as ``test/confusion_matrix``.
        test_predictions: predictions for the examples of this process in the last test, in no order; empty if the task
            keeps none (denoising).
        on_nonfinite: handles steps that are not finite.

    Args:
        task: the task with its network.
        optimizer: makes the optimizer of the network; None: no training.
        schedule: factor of the learning rate at each step.
        skips_not_finite: whether a step whose loss or gradient is not finite is skipped; else it ends the run.
        compiles: whether training compiles the blocks with torch.compile.
        has_one_shape: whether all batches have the same shape; else the blocks are compiled for dynamic shapes.
        new_weights: names of the network tensors that ``init_from`` did not load; empty: it loaded all, or is null.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
        schedule: Callable[[int], float] = lambda step: 1.0,
        *,
        skips_not_finite: bool = False,
        compiles: bool = False,
        has_one_shape: bool = False,
        new_weights: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.task, self.network = task, task.network
        self.make_optimizer, self.schedule = optimizer, schedule
        self.compiles, self.has_one_shape, self.new_weights = compiles, has_one_shape, new_weights
        self.on_nonfinite = NonFiniteSteps(skips=skips_not_finite)
        self.matrix_metrics: dict[str, list[list[int]]] = {}
        self.test_predictions: list[TestPrediction] = []
        self._losses: list[Tensor] = []  # of the batches since the last log row
        self._step_losses: list[Tensor] = []  # of the batches of this step
        self.metrics = nn.ModuleDict(
            {stage: nn.ModuleDict({"loss": ExactMean(), **task.make_metrics(stage)}) for stage in STAGES}
        )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns the optimizer and its schedule by steps."""
        assert self.make_optimizer is not None
        optimizer = self.make_optimizer(self.network)
        schedule = self.schedule  # in a function: LambdaLR would put an object's attributes into the checkpoint
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_start(self) -> None:
        """Compiles the network, after a moving average has copied it."""
        if self.compiles:
            self.network.compile_parts(dynamic=not self.has_one_shape)
        self.task.on_train_start()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Computes the contribution of this batch to the loss of the step."""
        self._seed_chance(batch_idx)
        accumulate = self.trainer.accumulate_grad_batches
        parts = accumulate * self.trainer.world_size  # Lightning and DDP take the mean of them
        loss = self.task.training_loss(batch) * (parts / max(batch.num_labels_in_step, 1))
        self._step_losses = [*self._step_losses, loss.detach()][-accumulate:]
        self._losses.append(loss.detach())
        if self.is_logged(self.trainer.global_step + 1) and (batch_idx + 1) % accumulate == 0:
            losses = torch.stack(self._losses)
            losses = losses.where(losses.isfinite(), torch.nan)
            self.log("train/loss", losses.nanmean(), prog_bar=True, sync_dist=True)
            self._losses.clear()
        # An infinite loss can have a finite gradient; this makes it NaN, which reaches every rank through the sum.
        return loss * torch.where(loss.detach().isfinite(), 1.0, torch.nan)

    def _seed_chance(self, batch_idx: int) -> None:
        """Seeds all generators by (seed, batch, rank) alone, so that a run can resume at any step."""
        # The hash of a tuple of integers is the same in every process.
        seed = hash((self.task.seed, batch_idx, self.global_rank)) % 2**32
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds without a GPU
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    def is_logged(self, step: int) -> bool:
        """Returns whether the loggers write after this step; at other steps, logged values need not be computed."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return step % every == 0

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips the norm of the gradient of the step, and logs the norm before clipping.

        (Lightning's version does not support fused optimizers under autocast, though only float16 scales its
        gradients.)

        Raises:
            NonFiniteError: if the loss or the gradient is not finite.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), gradient_clip_val or float("inf"))
        # the fused AdamW of PyTorch skips a step if its attribute found_inf, a tensor on the device, is 1
        is_fused = isinstance(optimizer, torch.optim.AdamW) and optimizer.defaults["fused"]
        may_look_later = is_fused and self.device.type not in ("cpu", "mps")
        if isinstance(norm, DTensor):  # each process has a shard of the gradient
            norm, may_look_later = norm.full_tensor(), False
        loss, step = torch.stack(self._step_losses).mean(), self.trainer.global_step + 1
        if may_look_later:
            optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
            self.on_nonfinite.look_later(step, loss, norm)
        elif not norm.isfinite():  # the norm is the same on all ranks
            if is_scaled := self.trainer.precision == "16-mixed":
                # Gradient scaling is adaptive: steps with too large gradients are expected, and are skipped. So the
                # loss decides, reduced over all ranks: if one rank ended alone, the others would wait for it.
                loss = self.trainer.strategy.reduce(loss, reduce_op="mean")
            if not (is_scaled and loss.isfinite()):
                self.on_nonfinite.add(step, float(loss), float(norm))
                self.network.zero_grad(set_to_none=True)  # the optimizer skips parameters without a gradient
        if self.is_logged(step):
            self.log("train/grad_norm", norm)

    def on_train_end(self) -> None:
        """Checks the last step."""
        self.on_nonfinite.look()

    def on_validation_start(self) -> None:
        """Checks the last step, so that weights that are not finite are not validated."""
        self.on_nonfinite.look()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a validation batch to the metrics."""
        if batch.examples:  # there may be more processes than batches
            self.task.evaluate(batch, self.metrics_of("val"), "val")

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/...``."""
        self._log_metrics("val")

    def on_test_epoch_start(self) -> None:
        """Clears the predictions of an earlier test."""
        self.test_predictions = []
        self.task.begin_test()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a test batch to the metrics, and records its predictions."""
        if batch.examples:
            predictions = self.task.evaluate(batch, self.metrics_of("test"), "test")
            self._record(predictions, () if batch.indices is None else batch.indices.tolist())

    def on_test_epoch_end(self) -> None:
        """Logs ``test/...``."""
        self._record(self.task.finish_test(self.metrics_of("test")), ())
        self._log_metrics("test")

    def _record(self, predictions: Predictions | None, indices: Sequence[int]) -> None:
        """Records predictions, if the indices of their examples are known.

        Args:
            indices: indices of the examples of the batch.
        """
        if predictions is None or not (indices := indices if predictions.indices is None else predictions.indices):
            return
        numbers = predictions.numbers
        rows = zip(*numbers.values(), strict=True) if numbers else [()] * len(indices)
        self.test_predictions += [
            TestPrediction(index, output, dict(zip(numbers, row, strict=True)))
            for index, output, row in zip(indices, predictions.outputs, rows, strict=True)
        ]

    def metric_names(self, stage: str) -> list[str]:
        """Returns the names of the metrics of an evaluation.

        Args:
            stage: val or test.
        """
        names = [n for name, metric in self.metrics_of(stage).items() for n in getattr(metric, "names", [name])]
        return [*self.task.derived_metrics(dict.fromkeys(names, 1.0))]

    def metrics_of(self, stage: str) -> dict[str, Metric]:
        """Returns the metrics of a stage by name."""
        metrics: Any = self.metrics[stage]
        return dict(metrics.items())

    def _log_metrics(self, stage: str) -> None:
        values: dict[str, float] = {}
        for name, metric in self.metrics_of(stage).items():
            result = torch.as_tensor(metric.compute())
            if result.ndim == 2:
                self.matrix_metrics[f"{stage}/{name}"] = result.tolist()
            else:  # one value, or several with names
                values |= zip(getattr(metric, "names", [name]), result.view(-1).tolist(), strict=True)
            metric.reset()
        self.log_dict({f"{stage}/{name}": value for name, value in self.task.derived_metrics(values).items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the losses of each rank that are not logged yet, and the number of skipped steps."""
        self.on_nonfinite.look()
        losses = [(torch.stack(self._losses) if self._losses else torch.empty(0)).cpu()] * self.trainer.world_size
        if len(losses) > 1:
            dist.all_gather_object(losses, losses[0])
        checkpoint["task"] = {"losses": torch.stack(losses), "skipped_steps": self.on_nonfinite.skipped}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resumes the optimizer state of the earlier run with the optimizer settings of this run."""
        if not any(isinstance(c, WeightAveraging) for c in self.trainer.callbacks):  # type: ignore[attr-defined]
            # for a run with a moving average, load the weights that training continues with
            checkpoint["state_dict"] = checkpoint.get("current_model_state", checkpoint["state_dict"])
        assert self.make_optimizer is not None
        groups = self.make_optimizer(self.network).param_groups
        factor = self.schedule(checkpoint["global_step"])
        for saved, group in zip(checkpoint["optimizer_states"][0]["param_groups"], groups, strict=True):
            settings = {name: value for name, value in group.items() if name not in ("params", *COUNTED)}
            saved.update(settings, initial_lr=group["lr"], lr=group["lr"] * factor)
        checkpoint["lr_schedulers"][0]["base_lrs"] = [group["lr"] for group in groups]
        losses = checkpoint["task"]["losses"].to(self.device)
        is_same_world = len(losses) == self.trainer.world_size
        self._losses = list(losses[self.global_rank] if is_same_world else losses.mean(0))
        self.on_nonfinite.skipped = checkpoint["task"]["skipped_steps"]
