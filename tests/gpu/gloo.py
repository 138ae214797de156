"""A strategy for two ranks on one card, which NCCL refuses: they talk by gloo, also of tensors on the card. (Not for
FSDP, whose collectives gloo lacks for such tensors: torch 2.11 ends in a segmentation fault.)"""

from triptych.training import DDP


class GlooDDP(DDP):
    """A copy of the weights in each process."""

    def __init__(self, *, timeout: float = 300.0) -> None:
        super().__init__(timeout=timeout)
        self._process_group_backend = "gloo"
