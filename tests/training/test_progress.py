"""The bar of a training."""

import lightning as L

from triptych.training import Progress


def test_a_run_that_goes_on_counts_all_its_batches() -> None:
    progress = Progress()
    trainer = L.Trainer(
        max_steps=10, max_epochs=-1, accumulate_grad_batches=2, callbacks=[progress], logger=False, accelerator="cpu"
    )
    progress.setup(trainer, L.LightningModule(), "fit")
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = 4
    assert trainer.global_step == 4
    assert progress.total_train_batches == 20
