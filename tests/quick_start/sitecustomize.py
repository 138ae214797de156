"""Found by every Python that the tests start (see conftest.py), not by the tests themselves. torchmetrics imports these
two whenever they are installed, which is a third of the start of a process, for metrics that nobody here uses; in this
project only tests import them. So this is a start as where they are not installed."""

import sys
from types import ModuleType


class Unused(ModuleType):
    """A module with nothing in it but names."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.modules |= {name: Unused(name) for name in ("transformers", "scipy.signal")}
