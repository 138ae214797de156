"""The command ``triptych`` and all its sub-commands."""

from triptych.cli.commands import main

__all__ = ["main"]
