"""Pruning: a trial's run reports each validation, and stops if other trials were better at that step."""

import logging
from pathlib import Path

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from triptych.config import counted
from triptych.search.trials import PrunerName, check_optuna, make_pruner, open_storage, storage_errors
from triptych.training.callbacks.checkpoint_saver import CheckpointSaver, check_metric, validation_metrics
from triptych.training.lightning_module import TrainingModule

log = logging.getLogger("triptych")


class Pruned(Exception):
    """The run was pruned and has saved its state.

    Args:
        step: completed steps.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"pruned after {counted(step, 'step')}")
        self.step = step


class Pruning(L.Callback):
    """Reports a metric of each validation to the trial's study, and ends the run cleanly if the trial is to be pruned.
    The sweeper adds it to the jobs of a search.

    Seeds of a trial form one series: step u of the run with seed s (from 0) is step ``s * max_steps + u`` of the trial.

    Args:
        storage: the file of the study.
        study: its name.
        trial: number of the trial in it.
        metric: of a validation, that is compared.
        pruner: name of the pruner.
        startup_trials: no trial is pruned before this many are complete.
        warmup_steps: no trial is pruned before this step.
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
        """Raises an error if the metric is not measured; opens the study."""
        from optuna import Trial, load_study
        from optuna.samplers import RandomSampler

        assert isinstance(pl_module, TrainingModule)
        check_metric("hydra.sweeper.metric", self.metric, validation_metrics(pl_module))
        pruned = False
        if trainer.is_global_zero:
            every = trainer.val_check_interval
            interval = every // trainer.accumulate_grad_batches if isinstance(every, int) else 1
            storage, pruner = open_storage(self.storage), make_pruner(self.pruner, interval)
            # This sampler draws nothing: the parameters exist already.
            study = load_study(study_name=self.study, storage=storage, sampler=RandomSampler(), pruner=pruner)
            self._trial = Trial(study, study.get_trials(deepcopy=False)[self.trial]._trial_id)
            pruned = "pruned_at" in self._trial.user_attrs
        self._is_pruned = trainer.strategy.broadcast(pruned)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Reports the metric; rank 0 broadcasts the decision."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            with storage_errors(self.storage):
                pruned = trainer.is_global_zero and self._report(trainer)
            self._is_pruned = trainer.strategy.broadcast(pruned)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: object) -> None:
        """Ends the run between two steps, with a checkpoint."""
        if self._is_pruned:
            (checkpoints,) = (callback for callback in trainer.callbacks if isinstance(callback, CheckpointSaver))  # type: ignore[attr-defined]
            checkpoints.save(trainer)
            raise Pruned(trainer.global_step)

    def _report(self, trainer: L.Trainer) -> bool:
        """Whether the trial is to be pruned. After the last step, pruning would save nothing."""
        check_metric("hydra.sweeper.metric", self.metric, list(trainer.callback_metrics))
        frozen = self._trial.study.get_trials(deepcopy=False)[self.trial]
        step = self.seed_index * trainer.max_steps + trainer.global_step
        if frozen.state.is_finished() or (frozen.last_step or 0) > step:
            return False  # the run was resumed from an earlier step; it was not pruned at this one
        if step not in frozen.intermediate_values:
            self._trial.report(float(trainer.callback_metrics[self.metric]), step)
        others = [trial for trial in self._trial.study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        is_hopeless = self._trial.should_prune()  # always called: successive halving has state
        is_early = len(others) < self.startup_trials or step < self.warmup_steps
        if not is_hopeless or is_early or trainer.global_step >= trainer.max_steps:
            return False
        self._trial.set_user_attr("pruned_at", step)
        return True
