"""Published model families, one file each: their settings and the names of their weights."""

import pkgutil
from importlib import import_module

from triptych.interop.families.family import Family


def find_families() -> tuple[Family, ...]:
    """All families of this folder: every class with a ``model_type``."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    kinds = [kind for module in modules for kind in vars(module).values() if hasattr(kind, "model_type")]
    return tuple(kind() for kind in dict.fromkeys(kinds))
