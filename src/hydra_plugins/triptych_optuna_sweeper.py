"""Makes the sweeper available to Hydra, which only finds plugins in the package ``hydra_plugins``."""

from triptych.search import OptunaSearch as _OptunaSweeper


class OptunaSweeper(_OptunaSweeper):
    """See ``triptych.search``."""
