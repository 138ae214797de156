"""The training loop, a row of benchmarks/speed.py: ours, a bare one, and Lightning's defaults on the same batches."""

import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from omegaconf import OmegaConf
from peers import CLIP
from speed_rows import Asked, Round, Row
from torch import Tensor

from triptych.assembly.choose_parts import choose_parts, complete_config
from triptych.assembly.loaders import make_data_module
from triptych.assembly.make_task import check_network, make_module, make_task
from triptych.assembly.monitors import choose_modes
from triptych.assembly.read_data import train_tokenizer
from triptych.config import TrainConfig, build
from triptych.config.run_settings import RunSettings
from triptych.data import Batch
from triptych.nn import Targets
from triptych.tasks import Task
from triptych.tasks.precision import arithmetic
from triptych.training import CheckpointMetadata, CheckpointSaver, TrainingModule, WandbLogger
from triptych.training.callbacks.cost_tracker import CostTracker

STEPS, WARM_UP = 220, 20
CPU = torch.device("cpu")


class Stopwatch(L.Callback):
    """Times the steps after the first few, up to the beginning of the last.

    Args:
        device: that they are computed on.

    Attributes:
        seconds: that they took, with what is between them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Starts and stops."""
        if batch_idx == WARM_UP:
            self.seconds = -clock(self.device)
        elif batch_idx == STEPS - 1:
            self.seconds += clock(self.device)


def clock(device: torch.device) -> float:
    """Seconds, when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Plain(L.LightningModule):
    """The least that Lightning needs, with the loss logged on every step.

    Args:
        module: whose network, loss and optimizer it has.
    """

    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.module = module

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss."""
        loss = language_model_loss(self.module.task, batch)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """Those of the module."""
        return self.module.configure_optimizers()


def language_model_loss(task: Task, batch: Batch) -> Tensor:
    """The mean over the labels of a batch."""
    targets = Targets(batch.scored, batch.labels.flatten()[batch.scored], 0.0)
    total: Tensor = task.network(batch.inputs, None, lengths=batch.lengths, targets=targets)
    return total / batch.num_labels_in_step


@contextmanager
def on_a_terminal() -> Iterator[None]:
    """Standard output and error are a terminal without a reader, so that progress bars have their usual work."""
    master, slave = os.openpty()
    output = open(slave, "w")  # noqa: SIM115 - closed below, before the other end

    def drain() -> None:
        with suppress(OSError):  # the other end is closed
            while os.read(master, 65536):
                pass

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            yield
    finally:
        output.close()
        thread.join()
        os.close(master)


def loop(batch_size: int, device: torch.device = CPU, network: Sequence[str] = ()) -> Row:
    """The whole training loop around a network of d_model 64 and 2 layers: ours as ``triptych train`` assembles it.

    Args:
        batch_size: dates per step; the fewer, the larger the fraction of time outside the network.
        device: that all compute on.
        network: overrides for another one.
    """
    accelerator = "cpu" if device.type == "cpu" else "gpu"
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    folder = tempfile.TemporaryDirectory()
    ConfigStore.instance().store(name="train_schema", node=TrainConfig)
    overrides = [
        "experiment=dates/language_modeling",
        *network,
        f"trainer.accelerator={accelerator}",
        f"batch.global_size={batch_size}",
        f"trainer.max_steps={STEPS}",
        f"trainer.val_check_interval={STEPS}",  # after the clock has stopped
        "trainer.limit_val_batches=1",
        "logger.wandb.name=speed",
        f"run_dir={folder.name}/first",
    ]
    with initialize_config_module("triptych.conf", version_base="1.3"):
        config = compose("train", overrides=overrides)
    corpus = build(config, "data")
    splits = corpus.splits()
    tokenizer = train_tokenizer(config, splits)
    choose_parts(config)
    choose_modes(config)
    complete_config(config, tokenizer.vocab_size, corpus.info)
    settings = RunSettings.of(config)
    data = make_data_module(settings, make_task(settings, tokenizer, corpus.info), splits)
    amount, numbers = float(STEPS - 1 - WARM_UP), count()

    def ours() -> Round:
        config.run_dir = f"{folder.name}/{next(numbers)}"
        Path(config.run_dir).mkdir()
        module, stopwatch = make_module(settings, make_task(settings, tokenizer, corpus.info)), Stopwatch(device)
        assert module.make_optimizer is not None
        plain = OmegaConf.to_container(config, resolve=True)
        with on_a_terminal():
            loggers = [build(config, f"logger.{name}") for name in config.logger]
            callbacks = [build(config, f"callbacks.{name}") for name in config.callbacks]
            (checkpoints,) = (callback for callback in callbacks if isinstance(callback, CheckpointSaver))
            added = [
                CostTracker(check_network(config), module.make_optimizer),
                CheckpointMetadata(cast(dict[str, object], plain), module.task),
                stopwatch,
            ]
            plugins = [checkpoints.files, LightningEnvironment()]
            given = {"logger": loggers, "callbacks": [*callbacks, *added], "plugins": plugins}
            build(config, "trainer", given).fit(module, data)
            for logger in loggers:
                if isinstance(logger, WandbLogger):
                    logger.finish(failed=False)
        return Round(amount, stopwatch.seconds)

    def bare() -> Round:
        task, seconds = make_task(settings, tokenizer, corpus.info), 0.0
        network = task.network.to(device).train()
        optimizer = build(config, "optimizer")(network)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, build(config, "scheduler"))
        for i, batch in enumerate(data.train_dataloader()):
            if i == WARM_UP:
                seconds = -clock(device)
            elif i == STEPS - 1:
                return Round(amount, seconds + clock(device))
            with arithmetic(task.precision, device).forward_context():
                loss = language_model_loss(task, batch.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        raise AssertionError("the batches never end")

    def plain() -> Round:
        module, stopwatch = (
            Plain(make_module(settings, make_task(settings, tokenizer, corpus.info))),
            Stopwatch(device),
        )
        with on_a_terminal():
            trainer = L.Trainer(
                accelerator=accelerator,
                max_steps=STEPS,
                gradient_clip_val=CLIP,
                default_root_dir=f"{folder.name}/lightning",
                callbacks=[stopwatch],
            )
            trainer.fit(module, data.train_dataloader())
        return Round(amount, stopwatch.seconds)

    return Row(
        title=f"The training loop around a small network: d_model 64, 2 layers, {batch_size} dates per step",
        unit="steps/s",
        rounds={"Triptych": ours, "bare PyTorch": bare, "Lightning's defaults, a loss logged each step": plain},
        asked=[
            Asked("Triptych", "bare PyTorch", 0.88),
            Asked("Triptych", "Lightning's defaults, a loss logged each step", 1.2),
        ],
        facts=[
            f"The table covers steps {WARM_UP + 1} to {STEPS - 1} of a run; batches are collated during the run. "
            "All contenders have the same network, batches, loss, fused AdamW, schedule and clipping."
        ],
    )
