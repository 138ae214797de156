"""Hyperparameter search: Hydra's command line, Optuna's samplers, and the jobs of the launchers."""

from triptych.search.sweeper import OptunaSearch

__all__ = ["OptunaSearch"]
