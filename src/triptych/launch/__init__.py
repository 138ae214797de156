"""Sweep jobs and ranks as processes of their own, and Hydra's errors in our words, and what Hydra may build.

``triptych.launch.processes`` is imported by that name alone: it needs Lightning, which takes seconds.
"""

from triptych.launch.errors import explain
from triptych.launch.guard import GuardedLoader
from triptych.launch.local import LocalLauncher
from triptych.launch.lock import locked
from triptych.launch.slurm import SlurmLauncher
from triptych.launch.sweep import experiment_of, run_directory

__all__ = ["GuardedLoader", "LocalLauncher", "SlurmLauncher", "experiment_of", "explain", "locked", "run_directory"]
