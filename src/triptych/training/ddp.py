"""Data-parallel training."""

from datetime import timedelta

from lightning.pytorch.strategies import DDPStrategy


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

    Raises:
        ValueError: it is not positive.
    """
    if timeout <= 0:
        raise ValueError(f"trainer.strategy.timeout={timeout}: expected more than 0 seconds")
    return timedelta(seconds=timeout)
