"""Strategies for two ranks on one card, which NCCL refuses: they talk by gloo, also of tensors on the card."""

from torch.distributed import distributed_c10d

from triptych.training import DDP, FSDP


class GlooDDP(DDP):
    """A copy of the weights in each process."""

    def __init__(self, *, timeout: float = 300.0) -> None:
        super().__init__(timeout=timeout)
        self._process_group_backend = "gloo"


class GlooFSDP(FSDP):
    """A share of the weights in each process."""

    def __init__(self, *, timeout: float = 300.0) -> None:
        super().__init__(timeout=timeout)
        self._process_group_backend = "gloo"

    def _setup_distributed(self) -> None:
        super()._setup_distributed()
        distributed_c10d._get_default_group().bound_device_id = None  # a group of a device is split, which gloo cannot
