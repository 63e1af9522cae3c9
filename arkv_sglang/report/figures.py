"""The looks of all plots: colors, axes without clutter, units that people read.

Drawn without pyplot, so nothing global and no display is touched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

WIDTH = 10.8
# Text stays text, so the viewer's own sans-serif is used and files are small; ids are the same
# every time.
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "arkv_sglang",
    "font.family": "sans-serif",
    "font.size": 10,
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colors that mean the same in every plot. ``paper`` is what the page has behind it.

    Plots are drawn in `LIGHT`, whose colors all differ; `darkened` makes their twins.
    """

    paper: str
    ink: str
    soft: str
    grid: str
    original: str
    quantized: str
    evicted: str
    spare: str
    good: str
    bad: str
    weights: str
    overhead: str
    other: str
    first: str
    engines: tuple[str, ...]


LIGHT = Theme(
    paper="#ffffff",
    ink="#1d2430",
    soft="#66707f",
    grid="#e8ebf0",
    original="#3169b0",
    quantized="#eda02f",
    evicted="#d5dae1",
    spare="#c3d8f0",
    good="#3f8f6b",
    bad="#b8433d",
    weights="#566b8a",
    overhead="#9a6fb8",
    other="#cfd5dd",
    first="#1f9a94",
    engines=(
        "#245089",
        "#3a76bd",
        "#6fa0d8",
        "#a9c8ea",
        "#2d7f7a",
        "#52aaa3",
        "#8fcdc7",
        "#c3e5e1",
    ),
)
DARK = Theme(
    paper="#14181f",
    ink="#e4e8ee",
    soft="#9aa5b4",
    grid="#2a313c",
    original="#5f9ee8",
    quantized="#f2b755",
    evicted="#465060",
    spare="#2b4668",
    good="#5fb98f",
    bad="#e5766f",
    weights="#8296b5",
    overhead="#b792d4",
    other="#39424f",
    first="#4cc4bc",
    engines=(
        "#bcd7f5",
        "#8dbaf0",
        "#5f96dc",
        "#3e70b0",
        "#b5e3de",
        "#7fcbc3",
        "#4da69e",
        "#347a74",
    ),
)
# Both themes have a light color there.
ON_QUANTIZED = "#16191e"


def new_figure(height: float) -> Figure:
    """A page wide, ``height`` inches high, transparent."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def dress(axes: Any, *, grid: str | None = "y") -> None:
    """Ink, soft axes and lines behind the data along ``grid``."""
    axes.patch.set_alpha(0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT.soft)
    axes.tick_params(colors=LIGHT.soft, which="both", length=0, labelsize=9)
    axes.xaxis.label.set_color(LIGHT.soft)
    axes.yaxis.label.set_color(LIGHT.soft)
    axes.title.set_color(LIGHT.ink)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=LIGHT.grid, lw=0.8)


def legend(figure: Figure, **options: Any) -> None:
    """Above all axes, at the right."""
    figure.legend(
        loc="outside upper right", frameon=False, labelcolor=LIGHT.ink, fontsize=9, **options
    )


def svg(figure: Figure) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def darkened(plot: str) -> str:
    """The SVG of a plot in the colors for a dark page."""
    return re.sub("#[0-9a-f]{6}", lambda color: _DARK_OF.get(color[0], color[0]), plot)


def _colors(theme: Theme) -> Iterator[str]:
    for value in astuple(theme):
        yield from value if isinstance(value, tuple) else (value,)


_DARK_OF = dict(zip(_colors(LIGHT), _colors(DARK), strict=True))
assert len(_DARK_OF) == len(list(_colors(LIGHT))), "colors of the light theme must differ"


# Units


def short_count(value: float, _: object = None) -> str:
    """1500 as 1.5k."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def short_seconds(value: float, _: object = None) -> str:
    if value < 1:
        return f"{1000 * value:g} ms"
    for factor, suffix in ((3600, "h"), (60, "min")):
        if value >= factor:
            return f"{value / factor:.3g} {suffix}"
    return f"{value:.3g} s"


def count_axis(axes: Any, *, max_ticks: int = 5) -> None:
    """A y axis of whole numbers from 0."""
    axes.set_ylim(0, max(axes.get_ylim()[1], 1))
    axes.yaxis.set_major_formatter(FuncFormatter(short_count))
    axes.yaxis.set_major_locator(MaxNLocator(max_ticks, integer=True))


def token_axis(axes: Any, low: float, high: float) -> None:
    """A logarithmic x axis of tokens, for lengths from ``low`` to ``high``."""
    axes.set_xscale("log")
    _ticks(axes.xaxis, _ROUND_COUNTS, low, high, short_count)
    axes.set_xlim(low / 1.06, high * 1.06)
    axes.set_xlabel("prompt tokens")


def seconds_axis(axis: Any, low: float, high: float) -> None:
    """Ticks of a logarithmic axis of seconds."""
    _ticks(axis, _ROUND_SECONDS, low, high, short_seconds)


def elapsed_unit(span_s: float) -> tuple[float, str]:
    """Seconds of the unit in which a run of ``span_s`` is shown, and its name."""
    for seconds, name in ((3600, "hours"), (60, "minutes")):
        if span_s > 3 * seconds:
            return seconds, name
    return 1, "seconds"


def byte_unit(most_bytes: float) -> tuple[float, str]:
    for shift, name in ((40, "TiB"), (30, "GiB")):
        if most_bytes >= 1 << shift:
            return 1 << shift, name
    return 1 << 20, "MiB"


_ROUND_COUNTS = [m * 10**e for e in range(10) for m in (1, 2, 5)]
_ROUND_SECONDS = [m * 10.0**e for e in range(-4, 0) for m in (1, 2, 5)]
_ROUND_SECONDS += [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600]
_ROUND_SECONDS += [3600 * hours for hours in (2, 5, 10, 20, 50, 100)]
MAX_TICKS = 9


def _ticks(axis: Any, round_values: Sequence[float], low: float, high: float, show: Any) -> None:
    """Of a logarithmic axis: round values, and the ends where there are none between them."""
    inside = [value for value in round_values if low <= value <= high]
    if len(inside) < 2:
        inside = [low, high]
    axis.set_major_locator(FixedLocator(inside[:: -(-len(inside) // MAX_TICKS)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(show))
