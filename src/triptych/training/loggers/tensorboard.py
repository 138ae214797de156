"""The TensorBoard logger (an optional dependency): the columns of ``metrics.csv`` as scalars.

Tested by tests/training/loggers/test_wandb.py.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from lightning.pytorch.loggers import TensorBoardLogger as LightningTensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from triptych.config import ConfigError


class TensorBoardLogger(LightningTensorBoardLogger):
    """Lightning's TensorBoard logger in a folder of the run directory, where a resumed run continues its curves.

    Args:
        save_dir: the run directory; the files go into ``save_dir/tensorboard``.

    Raises:
        ConfigError: if TensorBoard is not installed.
    """

    def __init__(self, *, save_dir: str) -> None:
        check_tensorboard()
        super().__init__(save_dir, name="tensorboard", version="", default_hp_metric=False)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics by the number of steps before this one."""
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    @rank_zero_only
    def save(self) -> None:
        """Flushes all events. (Lightning's version writes hyperparameters, which are in config.yaml.)"""
        self.experiment.flush()

    def rewind(self, num_steps: int) -> None:
        """Makes TensorBoard drop the values after a checkpoint, which will be logged again.

        Args:
            num_steps: number of steps at the checkpoint.
        """
        self._kwargs["purge_step"] = num_steps


def check_tensorboard() -> None:
    """Raises a ConfigError if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ConfigError("logger=tensorboard needs TensorBoard: pip install 'triptych[tensorboard]'")
