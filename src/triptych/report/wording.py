"""Numbers in words, for the table and the page."""


def amount(number: float, unit: str = "") -> str:
    """A number with three significant digits and an SI prefix: ``1.23 M``, ``45.6 TFLOP``."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(number) < 999.5 or prefix == "E":
            break
        number /= 1000
    whole = prefix == "" and number == int(number)
    digits = f"{number:.0f}" if whole or abs(number) >= 100 else f"{number:.3g}"
    return f"{digits} {prefix}{unit}".rstrip()


def duration(seconds: float) -> str:
    """A time in its two largest units: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
