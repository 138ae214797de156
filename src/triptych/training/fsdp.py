"""Training of models beyond one device."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from triptych.nn import Block
from triptych.tasks import Task
from triptych.training.ddp import patience


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
        """Lightning's, but the network is sharded here, and not by the task: block by block, and what is left."""
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        network = self._task.network
        if not isinstance(network, FSDPModule):
            mesh = self.device_mesh["data_parallel"]
            for stack in network.stacks:
                for block in stack.layers:
                    fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)
        self.model = self.precision_plugin.convert_module(self._task)
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
        return {name: self._whole(tensor) for name, tensor in self._task.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """What the optimizer of one process would have, on rank 0; every rank has to call it."""
        state = optimizer.state_dict()
        whole = {
            number: {name: self._whole(value) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": whole}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads it, in every process."""
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Takes this process's share of whole weights."""
        own = self._task.state_dict()
        shares = {name: share(tensor, own[name]) for name, tensor in checkpoint["state_dict"].items()}
        self._task.load_state_dict(shares, strict=strict)

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
    def _task(self) -> Task:
        assert isinstance(self.lightning_module, Task)
        return self.lightning_module

    def _sharded(self) -> list[FSDPModule]:
        return [module for module in self._task.network.modules() if isinstance(module, FSDPModule)]

    def _whole(self, value: Any) -> Any:
        """One tensor at a time, so that no device has to hold all."""
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return value.cpu() if isinstance(value, Tensor) and self.is_global_zero else None


def share(whole: Tensor, own: Tensor | nn.Parameter) -> Tensor:
    """This process's part of a tensor that every process has.

    Args:
        whole: the tensor.
        own: that it is for, or that it belongs to; a number (the optimizer's count of its steps) belongs to all.
    """
    if not isinstance(own, DTensor) or whole.shape != own.shape:
        return whole
    return distribute_tensor(whole.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
