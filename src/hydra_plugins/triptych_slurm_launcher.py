"""Hydra takes plugins from the package ``hydra_plugins`` alone; this is the launcher's place there."""

from triptych.launch.slurm import SlurmLauncher as _SlurmLauncher


class SlurmLauncher(_SlurmLauncher):
    """See ``triptych.launch``."""
