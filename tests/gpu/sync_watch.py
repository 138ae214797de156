"""A callback for real runs: an update in which the CPU waits for a GPU fails.

PYTHONPATH=tests/gpu TRIPTYCH_ALLOW=sync_watch. triptych train ... +callbacks.watch._target_=sync_watch.SyncWatch
"""

import lightning as L
import torch

FIRST, LAST = 3, 6


class SyncWatch(L.Callback):
    """Lets torch raise an error where the CPU waits for the GPU, from the beginning of one update to the end of
    another, none of which is logged or validated after."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        """Begins."""
        if trainer.global_step + 1 == FIRST:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer: L.Trainer, *_: object) -> None:
        """Ends."""
        if trainer.global_step == LAST:
            torch.cuda.set_sync_debug_mode("default")
