"""Trains and compares the three Transformer architectures."""

from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"
__all__ = ["load", "record"]

if TYPE_CHECKING:
    from triptych.assembly.restore import load
    from triptych.inspection import record


def __getattr__(name: str) -> Any:
    # torch and Lightning take seconds to import; `triptych --help` and `from triptych.nn import ...` do without
    if name == "load":
        from triptych.assembly.restore import load

        return load
    if name == "record":
        from triptych.inspection import record

        return record
    raise AttributeError(f"module 'triptych' has no attribute {name!r}")
