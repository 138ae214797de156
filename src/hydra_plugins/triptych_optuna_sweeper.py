"""Hydra takes plugins from the package ``hydra_plugins`` alone; this is the sweeper's place there."""

from triptych.search import OptunaSweeper as _OptunaSweeper


class OptunaSweeper(_OptunaSweeper):
    """See ``triptych.search``."""
