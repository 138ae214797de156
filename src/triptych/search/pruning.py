"""A run that is a trial of a search: it reports each validation, and stops where others were better by then."""

import logging
from pathlib import Path

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from triptych.config import counted
from triptych.data import Batch
from triptych.search.trials import PrunerName, check_optuna, make_pruner, open_storage, storage_errors
from triptych.training.callbacks.checkpoints import Checkpoints, check_metric, validation_metrics
from triptych.training.lightning_module import TrainingModule

log = logging.getLogger("triptych")


class Pruned(Exception):
    """The run was stopped, and has saved what it had, since it is hopeless.

    Args:
        update: the updates that were done.
    """

    def __init__(self, update: int) -> None:
        super().__init__(f"pruned after {counted(update, 'update')}")
        self.update = update


class Pruning(L.Callback):
    """Reports a metric of each validation to the trial's study, and ends the run in order if the trial is to be pruned.
    The sweeper adds it to the jobs of a search.

    A trial with several seeds is one series: update u of the run with seed s (from 0) is step ``s * max_steps + u``.

    Args:
        storage: the file of the study.
        study: its name.
        trial: number of the trial in it.
        metric: that is compared, of a validation.
        pruner: how.
        startup_trials: no trial is pruned before so many have been run to their end.
        warmup_steps: none is pruned before this step.
        seed_index: number of this run among those of the trial, from 0.
    """

    def __init__(
        self,
        *,
        storage: str,
        study: str,
        trial: int,
        metric: str,
        pruner: PrunerName,
        startup_trials: int,
        warmup_steps: int,
        seed_index: int,
    ) -> None:
        check_optuna()
        self.storage, self.study, self.trial, self.metric = Path(storage), study, trial, metric
        self.pruner, self.startup_trials, self.warmup_steps = pruner, startup_trials, warmup_steps
        self.seed_index = seed_index
        self._is_pruned = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses a metric that is not measured; opens the study."""
        from optuna import Trial, load_study
        from optuna.samplers import RandomSampler

        assert isinstance(pl_module, TrainingModule)
        check_metric("hydra.sweeper.metric", self.metric, validation_metrics(pl_module))
        pruned = False
        if trainer.is_global_zero:
            every = trainer.val_check_interval
            updates = every // trainer.accumulate_grad_batches if isinstance(every, int) else 1
            # This sampler draws nothing by itself: the parameters are drawn already.
            study = load_study(
                study_name=self.study,
                storage=open_storage(self.storage),
                sampler=RandomSampler(),
                pruner=make_pruner(self.pruner, updates),
            )
            self._trial = Trial(study, study.get_trials(deepcopy=False)[self.trial]._trial_id)
            pruned = "pruned_at" in self._trial.user_attrs
        self._is_pruned = trainer.strategy.broadcast(pruned)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Reports; all ranks hear what rank 0 is told."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            with storage_errors(self.storage):
                pruned = trainer.is_global_zero and self._report(trainer)
            self._is_pruned = trainer.strategy.broadcast(pruned)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Ends the run between two updates, with a checkpoint."""
        if self._is_pruned:
            (checkpoints,) = (callback for callback in trainer.callbacks if isinstance(callback, Checkpoints))  # type: ignore[attr-defined]
            checkpoints.save(trainer)
            raise Pruned(trainer.global_step)

    def _report(self, trainer: L.Trainer) -> bool:
        """Whether the trial is to be pruned. After the last update there is nothing left to spare."""
        check_metric("hydra.sweeper.metric", self.metric, list(trainer.callback_metrics))
        frozen = self._trial.study.get_trials(deepcopy=False)[self.trial]
        step = self.seed_index * trainer.max_steps + trainer.global_step
        if frozen.state.is_finished() or (frozen.last_step or 0) > step:
            return False  # the run goes on from before what was reported already, and was not pruned then
        if step not in frozen.intermediate_values:
            self._trial.report(float(trainer.callback_metrics[self.metric]), step)
        others = [trial for trial in self._trial.study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        is_hopeless = self._trial.should_prune()  # asked in any case: successive halving notes what it is asked
        is_early = len(others) < self.startup_trials or step < self.warmup_steps
        if not is_hopeless or is_early or trainer.global_step >= trainer.max_steps:
            return False
        self._trial.set_user_attr("pruned_at", step)
        return True
