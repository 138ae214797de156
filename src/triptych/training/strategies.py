"""Strategies for data-parallel training."""
# Takes a DictConfig: it checks keys and classes that any file may set.

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from triptych.config import ConfigError, build, precision_of, target_of
from triptych.launch.processes import RankInfo, depends_on_clock, tasks_per_node
from triptych.nn import Block
from triptych.training.lightning_module import TrainingModule
from triptych.training.optimizers import Adafactor, Muon


class DDP(DDPStrategy):
    """Lightning's DDP strategy with a timeout in seconds.

    Args:
        timeout: seconds that a process waits for the others before an error.

    Raises:
        ValueError: if the timeout is not positive.
    """

    def __init__(self, *, timeout: float = 1800.0) -> None:
        super().__init__(timeout=process_group_timeout(timeout))


def process_group_timeout(timeout: float) -> timedelta:
    """Returns a timeout in seconds as a timedelta."""
    if timeout <= 0:
        raise ValueError(f"trainer.strategy.timeout={timeout}: expected more than 0 seconds")
    return timedelta(seconds=timeout)


class FSDP(ModelParallelStrategy):
    """A strategy in which each process holds a shard of all weights, gradients and optimizer states.

    See Zhao et al. 2023 and PyTorch's ``fully_shard``. The weights of a block are gathered while it computes. A
    checkpoint is one file, the same as that of a single process. In validation and test, the full weights (without
    gradients and optimizer) are gathered on every device, because processes may have different numbers of batches and
    generate texts of different lengths.

    Args:
        timeout: seconds that a process waits for the others before an error.

    Raises:
        ValueError: if the timeout is not positive.
    """

    restore_checkpoint_after_setup = False
    """The weights are restored before they are sharded, and callbacks have their state from the start."""
    lightning_restore_optimizer = True
    """By ``load_optimizer_state_dict``."""

    def __init__(self, *, timeout: float = 1800.0) -> None:
        super().__init__(
            tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=process_group_timeout(timeout)
        )

    def setup_environment(self) -> None:
        """Connects the processes; the weights are sharded over all of them."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def setup(self, trainer: L.Trainer) -> None:
        """Sets up like Lightning, and shards the network here instead of in the module: each block, then the rest."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        network = self._module.network
        if not isinstance(network, FSDPModule):
            mesh = self.device_mesh["data_parallel"]
            for stack in network.stacks:
                for block in stack.layers:
                    fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)
        self.model = self.precision_plugin.convert_module(self._module)
        self.model_to_device()
        self.barrier()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def on_validation_start(self) -> None:
        """Gathers the full weights."""
        for module in self._sharded():
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def on_validation_end(self) -> None:
        """Reshards the weights."""
        for module in self._sharded():
            module.set_reshard_after_forward(isinstance(module, Block), recurse=False)
            module.reshard()

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns the full weights on rank 0; every rank must call it."""
        return {name: self._gather(tensor) for name, tensor in self._module.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns the full optimizer state, as of a single process, on rank 0; every rank must call it."""
        state = optimizer.state_dict()
        parts = state["state"].items()
        whole = {number: {name: self._gather(value) for name, value in values.items()} for number, values in parts}
        return {**state, "state": whole}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads the checkpoint in every process."""
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads the shard of this process from the full weights."""
        own = self._module.state_dict()
        shares = {name: share(tensor, own[name]) for name, tensor in checkpoint["state_dict"].items()}
        self._module.load_state_dict(shares, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Loads the shard of this process from the full optimizer state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            shares = {
                number: {name: share(value, parameters[number]) for name, value in values.items()}
                for number, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": shares})

    @property
    def _module(self) -> TrainingModule:
        assert isinstance(self.lightning_module, TrainingModule)
        return self.lightning_module

    def _sharded(self) -> list[FSDPModule]:
        return [module for module in self._module.network.modules() if isinstance(module, FSDPModule)]

    def _gather(self, value: Any) -> Any:
        """Gathers one tensor at a time, so that no device holds all."""
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return value.cpu() if isinstance(value, Tensor) and self.is_global_zero else None


def share(whole: Tensor, own: Tensor | nn.Parameter) -> Tensor:
    """Returns the shard of this process of a tensor that every process has.

    Args:
        own: the sharded tensor with its placement; a tensor of another shape (such as the step count of the optimizer)
            is returned unchanged.
    """
    if not isinstance(own, DTensor) or whole.shape != own.shape:
        return whole
    return distribute_tensor(whole.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def check_split(config: DictConfig, world_size: int) -> None:
    """Raises an error if batch.global_size cannot be split evenly. (With max_tokens, a process may get no examples.)"""
    parts = config.trainer.accumulate_grad_batches * world_size
    if config.batch.global_size is not None and config.batch.global_size % parts:
        raise ConfigError(
            f"batch.global_size={config.batch.global_size} cannot be split evenly over trainer.accumulate_grad_batches="
            f"{config.trainer.accumulate_grad_batches} and {world_size} processes; expected a multiple of {parts}"
        )


def check_strategy(config: DictConfig) -> None:
    """Checks that the strategy is supported, together with the other settings.

    Raises:
        ConfigError: if the strategy is not auto, ddp or fsdp, or a setting is not supported by FSDP.
    """
    strategy = config.trainer.strategy
    target = None if isinstance(strategy, str) else target_of(config, "trainer.strategy")
    if strategy not in ("auto", "ddp") if target is None else not issubclass(target, DDP | FSDP):
        name = strategy if target is None else target.__name__
        raise ConfigError(f"trainer.strategy={name}: expected auto, ddp, or the groups trainer=ddp or trainer=fsdp")
    if target is None or not issubclass(target, FSDP):
        return
    for name in config.callbacks:
        if issubclass(target_of(config, f"callbacks.{name}"), WeightAveraging):
            raise ConfigError(f"callbacks.{name}: FSDP keeps no moving average of the weights; omit it, or use ddp")
    if issubclass(optimizer := target_of(config, "optimizer"), Muon | Adafactor):
        raise ConfigError(
            f"optimizer: {optimizer.__name__} looks at whole matrices, of which FSDP gives each process a share; "
            "expected adamw, schedule_free_adamw or sgd, or trainer=ddp"
        )
    if precision_of(config) in ("16-mixed", "64-true"):
        raise ConfigError(f"trainer.precision={config.trainer.precision}: FSDP has 32-true, bf16-mixed and bf16-true")


def check_place(config: DictConfig, place: RankInfo) -> int:
    """Returns the number of processes that the configuration requests.

    Raises:
        ConfigError: if it is not the number that was started, devices are missing, or the run directory differs between
            processes.
    """
    check_strategy(config)
    try:
        trainer: L.Trainer = build(config, "trainer", {"logger": False, "plugins": [place.environment()]})
    except (MisconfigurationException, TypeError) as error:
        raise ConfigError(f"trainer.devices={config.trainer.devices}: {' '.join(str(error).split())}") from None
    world_size = trainer.num_devices * trainer.num_nodes
    if place.starter is None and trainer.num_nodes > 1:
        raise ConfigError(f"trainer.num_nodes={trainer.num_nodes}: start several nodes with srun or torchrun")
    asked = f"trainer.devices={config.trainer.devices} on trainer.num_nodes={trainer.num_nodes}"
    if place.starter is not None and world_size != place.world_size:
        raise ConfigError(f"{asked}, but {place.starter} started {place.world_size} processes")
    if (tasks := tasks_per_node(place)) and tasks != {trainer.num_devices}:
        raise ConfigError(f"{asked}, but {place.starter} started {' or '.join(map(str, sorted(tasks)))} per node")
    if place.starter is not None and depends_on_clock(config):
        raise ConfigError(f"run_dir: each process of {place.starter} would use its own timestamp. Set run_dir=FOLDER")
    check_split(config, world_size)
    return world_size
