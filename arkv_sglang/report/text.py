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
