"""Strategies for two ranks on one card, which NCCL refuses: they talk by gloo, also of tensors on the card."""

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
