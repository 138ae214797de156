"""Numbers in words."""

YEAR = 365 * 86400
"""Seconds."""


def amount(number: float, unit: str = "") -> str:
    """A number with three significant digits and an SI prefix: ``1.23 M``, ``45.6 TFLOP``."""
    for prefix in ("", "k", "M", "G", "T", "P", "E", "Z", "Y"):
        if abs(number) < 999.5 or prefix == "Y":
            break
        number /= 1000
    whole = prefix == "" and number == int(number)
    digits = f"{number:.0f}" if whole or abs(number) >= 100 else f"{number:.3g}"
    return f"{digits} {prefix}{unit}".rstrip()


def duration(seconds: float) -> str:
    """A time in its two largest units: ``42 s``, ``3 min 05 s``, ``2 h 10 min``, ``3 days 4 h``; from two years on in
    years."""
    if seconds < 1:
        return "less than a second"
    if seconds >= 2 * YEAR:
        return f"{seconds / YEAR:,.1f} years"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def about_duration(seconds: float) -> str:
    """``about 42 s``, and ``less than a second``."""
    text = duration(seconds)
    return text if seconds < 1 else f"about {text}"


def counted(number: int, noun: str) -> str:
    """``1 process``, ``2,048 processes``, ``3 batches``."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}"
