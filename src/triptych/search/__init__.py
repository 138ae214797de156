"""The search for good settings: Hydra's command line, Optuna's samplers, the launchers' jobs."""

from triptych.search.sweeper import OptunaSweeper

__all__ = ["OptunaSweeper"]
