"""TensorBoard, an optional dependency: the series of ``metrics.csv`` as scalars."""

from collections.abc import Mapping
from importlib.util import find_spec

from lightning.pytorch.loggers import TensorBoardLogger as LightningTensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from triptych.config import ConfigError


class TensorBoardLogger(LightningTensorBoardLogger):
    """Lightning's logger, into a folder of the run directory, where a run that goes on continues its series.

    Args:
        save_dir: the run directory; the files go into ``save_dir/tensorboard``.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, *, save_dir: str) -> None:
        check_tensorboard()
        super().__init__(save_dir, name="tensorboard", version="", default_hp_metric=False)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics by updates before this one."""
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)

    @rank_zero_only
    def save(self) -> None:
        """Returns when all is written. (Lightning's own writes hyperparameters, which stand in config.yaml.)"""
        self.experiment.flush()

    def rewind(self, updates: int) -> None:
        """TensorBoard will leave out what was logged after a checkpoint, since it is logged again.

        Args:
            updates: that were done at the checkpoint.
        """
        self._kwargs["purge_step"] = updates


def check_tensorboard() -> None:
    """Refuses to go on without TensorBoard.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise ConfigError("logger=tensorboard needs TensorBoard: pip install 'triptych[tensorboard]'")
