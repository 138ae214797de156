"""Makes the launcher available to Hydra, which only finds plugins in the package ``hydra_plugins``."""

from triptych.launch.local import LocalJobRunner as _LocalLauncher


class LocalLauncher(_LocalLauncher):
    """See ``triptych.launch``."""
