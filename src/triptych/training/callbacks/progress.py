"""The progress bar."""

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar


class Progress(RichProgressBar):
    """Lightning's bar, counted in updates instead of epochs.

    Args:
        refresh_rate: how often in a second it is drawn, which takes milliseconds that small updates feel; 0: no bar.
    """

    def __init__(self, *, refresh_rate: int = 4) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=True)

    @property
    def total_train_batches(self) -> int:
        """All batches of the training, those before a resume too. (Lightning's own counts what is left.)"""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def _get_train_description(self, current_epoch: int) -> str:
        return "Training".ljust(len(self.validation_description))

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """The metrics beside the bar. (Lightning adds the logger's version, which it looks up after each batch.)"""
        metrics: dict[str, int | str | float | dict[str, float]] = {**trainer.progress_bar_metrics}
        return metrics
