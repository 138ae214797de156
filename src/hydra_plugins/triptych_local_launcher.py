"""Hydra takes plugins from the package ``hydra_plugins`` alone; this is the launcher's place there."""

from triptych.launch.local import LocalLauncher as _LocalLauncher


class LocalLauncher(_LocalLauncher):
    """See ``triptych.launch``."""
