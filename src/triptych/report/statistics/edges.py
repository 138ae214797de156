"""Edges of what was tried: a better value of a tuned setting may lie beyond.

Tested by tests/studies/test_plan.py and tests/report/test_findings.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """The best value of a tuned setting, if it is the smallest or the largest tried.

    Attributes:
        key: of the setting.
        value: the best one.
        is_largest: whether it is the largest tried, not the smallest.
        beyond: the next value to try, by the ratio of the two outer values; by their difference if one is not positive.
    """

    key: str
    value: float
    is_largest: bool
    beyond: float

    @classmethod
    def find(cls, key: str, value: float, tried: Iterable[float]) -> "Edge | None":
        """The edge at which a value is among those tried; None: inside, or nothing else was tried. A smallest value of
        0 is no edge: it turns something off, such as dropout."""
        numbers = sorted({*tried})
        if len(numbers) < 2 or value not in (numbers[0], numbers[-1]) or value == numbers[0] == 0:
            return None
        is_largest = value == numbers[-1]
        inner = numbers[-2] if is_largest else numbers[1]
        beyond = value * value / inner if value * inner > 0 else 2 * value - inner
        return cls(key, value, is_largest, float(f"{beyond:.3g}"))

    def describe(self, name: str) -> str:
        """The edge in words.

        Args:
            name: of the variant.
        """
        size = "largest" if self.is_largest else "smallest"
        return f"the best {self.key} of {name} ({self.value:g}) is the {size} tried; try {self.beyond:g}"
