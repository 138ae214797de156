"""Sweep jobs as processes of their own, and Hydra's errors in our words."""

from triptych.launch.errors import explain
from triptych.launch.local import LocalLauncher

__all__ = ["LocalLauncher", "explain"]
