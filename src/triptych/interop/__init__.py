"""Import from and export to Hugging Face folders."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["import_folder", "load_pretrained", "push_folder", "read_network", "save_pretrained", "write_network"]

if TYPE_CHECKING:
    from triptych.interop.folders import import_folder, load_pretrained, save_pretrained
    from triptych.interop.networks import read_network, write_network
    from triptych.interop.push import push_folder


def __getattr__(name: str) -> Any:
    # Lightning's metrics import transformers if it is installed; Triptych's metrics do not use it
    if name not in __all__:
        raise AttributeError(f"module 'triptych.interop' has no attribute {name!r}")
    module = {"_network": "networks", "h_folder": "push"}.get(name[-8:], "folders")
    return getattr(import_module(f"triptych.interop.{module}"), name)
