"""A callback that tells a test, from within every rank, what happens there. Real runs import it; no test does.

    PYTHONPATH=tests TRIPTYCH_ALLOW=recording_callback. triptych train ... \
        +callbacks.recording._target_=recording_callback.RecordingCallback \
        +callbacks.recording.folder=FOLDER '+callbacks.recording.seconds=[0.1,0]'
"""

import os
import signal
import time
from pathlib import Path

import lightning as L
import torch
from torch.distributed.tensor import DTensor


class RecordingCallback(L.Callback):
    """Writes ``steps-RANK`` (a number) and ``pid-RANK`` after each batch, ``test-RANK`` (its number) before each test
    batch, and ``gradient-RANK.pt`` of the first step. At the end of training it writes ``losses-RANK.pt`` (of each
    batch), ``weights-RANK.pt`` and ``held-RANK.pt`` (how many weights and optimizer states this process holds).

    Args:
        folder: where.
        seconds: that each rank waits in every batch, by rank; missing: none.
        test_seconds: that every rank waits in every batch of the test.
    """

    def __init__(self, folder: str, seconds: list[float] | None = None, test_seconds: float = 0) -> None:
        self.folder, self.seconds, self.test_seconds = Path(folder), seconds or [], test_seconds
        self.losses: list[torch.Tensor] = []

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: dict[str, torch.Tensor],
        batch: object,
        batch_idx: int,
    ) -> None:
        """Notes how far this rank is."""
        time.sleep(dict(enumerate(self.seconds)).get(trainer.global_rank, 0))
        self._note(f"pid-{trainer.global_rank}", os.getpid())
        self._note(f"steps-{trainer.global_rank}", trainer.global_step)
        self.losses.append(outputs["loss"].double())

    def _note(self, name: str, number: int) -> None:
        """Writes a file that is never empty. Jobs of an array have one folder."""
        new = self.folder / f".{name}-{os.getpid()}"
        new.write_text(str(number))
        new.rename(self.folder / name)

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Notes which batch it is."""
        self._note(f"test-{trainer.global_rank}", batch_idx)
        time.sleep(self.test_seconds)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Keeps the first gradient, before it is clipped."""
        if trainer.global_step == 0:
            parameters = dict(pl_module.network.named_parameters())
            gradient = {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}
            torch.save(gradient, self.folder / f"gradient-{trainer.global_rank}.pt")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps the losses and the weights, and counts."""
        torch.save(
            torch.stack(self.losses) if self.losses else torch.empty(0),
            self.folder / f"losses-{trainer.global_rank}.pt",
        )
        weights = {name: whole(tensor) for name, tensor in pl_module.network.state_dict().items()}
        torch.save(weights, self.folder / f"weights-{trainer.global_rank}.pt")
        state = [tensor for of_one in trainer.optimizers[0].state.values() for tensor in of_one.values()]
        held = [t.to_local() if isinstance(t, DTensor) else t for t in (*pl_module.network.parameters(), *state)]
        torch.save(torch.tensor(sum(tensor.numel() for tensor in held)), self.folder / f"held-{trainer.global_rank}.pt")


class Stop(L.Callback):
    """Sends a signal to its own process, once, as soon as a step is done.

    Args:
        step: its number.
        signum: its name, such as SIGTERM.
        once: a file that is made then; if it is there, nothing is sent.
    """

    def __init__(self, step: int, signum: str, once: str) -> None:
        self.step, self.signum, self.once = step, signal.Signals[signum], Path(once)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Sends it."""
        if trainer.global_step == self.step and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), self.signum)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor of which each process has a share."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
