"""A callback that tells a test, from within every rank, what happens there. Real runs import it; no test does.

    PYTHONPATH=tests TRIPTYCH_ALLOW=witness. triptych train ... +callbacks.witness._target_=witness.Witness \
        +callbacks.witness.folder=FOLDER '+callbacks.witness.seconds=[0.1,0]'
"""

import time
from pathlib import Path

import lightning as L
import torch


class Witness(L.Callback):
    """Writes ``updates-RANK`` (a number) after every batch, and ``weights-RANK.pt`` when the training has ended.

    Args:
        folder: where.
        seconds: that each rank waits in every batch, by rank; missing: none.
    """

    def __init__(self, folder: str, seconds: list[float] | None = None) -> None:
        self.folder, self.seconds = Path(folder), seconds or []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Notes how far this rank is."""
        time.sleep(dict(enumerate(self.seconds)).get(trainer.global_rank, 0))
        new = self.folder / f".updates-{trainer.global_rank}"
        new.write_text(str(trainer.global_step))
        new.rename(self.folder / f"updates-{trainer.global_rank}")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps the weights."""
        torch.save(pl_module.network.state_dict(), self.folder / f"weights-{trainer.global_rank}.pt")
