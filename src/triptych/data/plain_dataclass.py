"""Metadata of corpora and tokenizers that checkpoints contain.

Tested by tests/data/tokenizers/test_tokenizer.py and tests/tasks/test_task.py.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self


class PlainDataclass:
    """Base of dataclasses whose values are tuples, strings and numbers."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Converts to a dictionary for a checkpoint."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Inverse of ``to_dict``."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})
