"""Found by every Python that the tests start (see shared_fixtures.py), and by ``make faults`` and ``make docs``; not by
the tests of ``make test``. torchmetrics imports these two whenever they are installed, a third of the start of a
process, for metrics that Triptych does not use. So this is a start as where they are not installed. What Triptych uses
of scipy.signal is imported when it is asked for."""

import importlib
import sys
from types import ModuleType


class Unused(ModuleType):
    """A module with nothing in it but names."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "resample_poly":
            del sys.modules[self.__name__]
            return getattr(importlib.import_module(self.__name__), name)
        return type(name, (), {})


sys.modules |= {name: Unused(name) for name in ("transformers", "scipy.signal")}
