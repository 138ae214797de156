"""Numbers in words."""

import pytest

from triptych.config.wording import amount, counted, duration


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0"), (999, "999"), (999_600, "1 M"), (412_160, "412 k"), (3.1e12, "3.1 T"), (12.34, "12.3")),
        (3.14e23, "314 Z"),
    ],
)
def test_amount(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.5, "less than a second"), (42.4, "42 s"), (185, "3 min 05 s"), (7199, "1 h 59 min"), (7800, "2 h 10 min")),
        *((86400 * 3, "3 days 0 h"), (3.1536e10, "1,000.0 years")),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_duration_of_whole_minutes() -> None:
    """Rounding carries into the larger unit."""
    assert duration(59.7) == "1 min 00 s"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2048, "row", "2,048 rows"),
        (3, "process", "3 processes"),
        (2, "batch", "2 batches"),
    ],
)
def test_counted(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
