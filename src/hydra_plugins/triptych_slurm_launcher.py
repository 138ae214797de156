"""Makes the launcher available to Hydra, which only finds plugins in the package ``hydra_plugins``."""

from triptych.launch.slurm import SlurmJobRunner as _SlurmLauncher


class SlurmLauncher(_SlurmLauncher):
    """See ``triptych.launch``."""
