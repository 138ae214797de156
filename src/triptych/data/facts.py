"""What is known of data or of a tokenizer and goes into a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self


class Facts:
    """A dataclass whose values are tuples, texts and numbers."""

    __slots__ = ()

    def as_plain(self) -> dict[str, Any]:
        """Plain containers, for a checkpoint."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """What ``as_plain`` gave."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})
