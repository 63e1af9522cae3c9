"""How numbers are shown to people, in the table and on the page."""

from __future__ import annotations

MISSING = "-"


def show_bytes(value: float | None) -> str:
    if value is None:
        return MISSING
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.2f} GiB"


def show_number(value: float | None, digits: int = 0) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def show_count(count: int, noun: str) -> str:
    """ "1 document", "2 documents"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_ratio(value: float | None) -> str:
    """A share of one in percent; what is not quite nothing, or not quite all, shows as such."""
    if value is None:
        return MISSING
    if 0 < value < 0.001 or 0.999 < value < 1:
        return "<0.1 %" if value < 0.5 else ">99.9 %"
    return f"{value:.1%}".replace("%", " %").replace(".0 ", " ")


def show_duration(seconds: float | None) -> str:
    """Seconds, minutes and hours, in two figures."""
    if seconds is None:
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    if seconds < 100:
        return f"{seconds:,.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {whole:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02} min"
