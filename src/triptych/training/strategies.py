"""Data-parallel training."""
# Takes a DictConfig: it looks for what is wrong in keys and classes that any file may name.

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
from triptych.launch.processes import Place, depends_on_clock, tasks_per_node
from triptych.nn import Block
from triptych.training.lightning_module import TrainingModule
from triptych.training.optimizers import Adafactor, Muon


class DDP(DDPStrategy):
    """Lightning's, with a timeout that a configuration can hold.

    Args:
        timeout: seconds that a process waits for the others before it gives up.

    Raises:
        ValueError: a timeout that is not positive.
    """

    def __init__(self, *, timeout: float = 1800.0) -> None:
        super().__init__(timeout=patience(timeout))


def patience(timeout: float) -> timedelta:
    """A timeout as torch wants it.

    Args:
        timeout: seconds.
    """
    if timeout <= 0:
        raise ValueError(f"trainer.strategy.timeout={timeout}: expected more than 0 seconds")
    return timedelta(seconds=timeout)


class FSDP(ModelParallelStrategy):
    """Each process keeps a share of every weight, with its gradient and the state of the optimizer (Zhao et al. 2023;
    torch's ``fully_shard``). The weights of a block are gathered while it computes.

    A checkpoint is one file, the same as that of one process. For a validation or a test the whole weights (without
    gradients and optimizer) are gathered on every device, since the processes neither have the same number of batches
    nor write texts of the same length.

    Args:
        timeout: seconds that a process waits for the others before it gives up.

    Raises:
        ValueError: a timeout that is not positive.
    """

    def __init__(self, *, timeout: float = 1800.0) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=patience(timeout))

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """False: the weights are taken before they are sharded, and the callbacks know of it from the beginning."""
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """True: ``load_optimizer_state_dict`` does it."""
        return True

    def setup_environment(self) -> None:
        """Connects the processes. All of them share the weights."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def setup(self, trainer: L.Trainer) -> None:
        """Lightning's, but the network is sharded here, and not by the module: block by block, and what is left."""
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
        """Gathers the whole weights."""
        for module in self._sharded():
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def on_validation_end(self) -> None:
        """Back to the shares."""
        for module in self._sharded():
            module.set_reshard_after_forward(isinstance(module, Block), recurse=False)
            module.reshard()

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The whole weights, on rank 0; every rank has to call it."""
        return {name: self._gather(tensor) for name, tensor in self._module.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """What the optimizer of one process would have, on rank 0; every rank has to call it."""
        state = optimizer.state_dict()
        whole = {
            number: {name: self._gather(value) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": whole}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads it, in every process."""
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Takes this process's share of whole weights."""
        own = self._module.state_dict()
        shares = {name: share(tensor, own[name]) for name, tensor in checkpoint["state_dict"].items()}
        self._module.load_state_dict(shares, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes this process's share of the state of an optimizer."""
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
        """One tensor at a time, so that no device has to hold all."""
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return value.cpu() if isinstance(value, Tensor) and self.is_global_zero else None


def share(whole: Tensor, own: Tensor | nn.Parameter) -> Tensor:
    """This process's part of a tensor that every process has.

    Args:
        own: that it is for, or that it belongs to; a number (the optimizer's count of its steps) belongs to all.
    """
    if not isinstance(own, DTensor) or whole.shape != own.shape:
        return whole
    return distribute_tensor(whole.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def check_split(config: DictConfig, world_size: int) -> None:
    """Refuses an update that cannot be dealt out evenly. (One of batch.tokens can: a process may get nothing.)"""
    parts = config.trainer.accumulate_grad_batches * world_size
    if config.batch.size is not None and config.batch.size % parts:
        raise ConfigError(
            f"batch.size={config.batch.size} cannot be split evenly over trainer.accumulate_grad_batches="
            f"{config.trainer.accumulate_grad_batches} and {world_size} processes; expected a multiple of {parts}"
        )


def check_strategy(config: DictConfig) -> None:
    """Refuses what trains in another way than is tested here, or in fewer processes than it says.

    Raises:
        ConfigError: another strategy than auto, ddp and fsdp, or what FSDP cannot carry.
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


def check_place(config: DictConfig, place: Place) -> int:
    """How many processes the configuration wants to train together.

    Raises:
        ConfigError: not as many as were started, devices that are not there, or a run directory that is not the same
            for all.
    """
    check_strategy(config)
    try:
        trainer: L.Trainer = build(config, "trainer", {"logger": False, "plugins": [place.environment()]})
    except (MisconfigurationException, TypeError) as error:
        raise ConfigError(f"trainer.devices={config.trainer.devices}: {' '.join(str(error).split())}") from None
    world_size = trainer.num_devices * trainer.num_nodes
    if place.starter is None and trainer.num_nodes > 1:
        raise ConfigError(f"trainer.num_nodes={trainer.num_nodes}: on several machines, start with srun or torchrun")
    if place.starter is not None and world_size != place.world_size:
        raise ConfigError(
            f"trainer.devices={config.trainer.devices} on trainer.num_nodes={trainer.num_nodes}, "
            f"but {place.starter} has started {place.world_size} processes"
        )
    if (tasks := tasks_per_node(place)) and tasks != {trainer.num_devices}:
        raise ConfigError(
            f"trainer.devices={config.trainer.devices} on trainer.num_nodes={trainer.num_nodes}, "
            f"but {place.starter} has started {' or '.join(map(str, sorted(tasks)))} on each machine"
        )
    if place.starter is not None and depends_on_clock(config):
        raise ConfigError(f"run_dir: each process that {place.starter} starts reads its own clock; give run_dir=...")
    check_split(config, world_size)
    return world_size
