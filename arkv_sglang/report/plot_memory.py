"""A plot of what fills each engine's memory, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arkv_sglang.report.figures import LIGHT, byte_unit, dress, legend, new_figure, svg


def memory(engines: Sequence[Mapping[str, Any]]) -> str | None:
    """A stacked bar for each engine, and its measured peak; None when no engine said anything."""
    known = [engine for engine in engines if engine["arena_bytes"] or engine["weights_bytes"]]
    if not known:
        return None
    sizes = np.array([_layers(engine) for engine in known], dtype=float)
    peaks = [_peak(engine) for engine in known]
    unit, unit_name = byte_unit(max(*sizes.sum(axis=1), *(peak for peak, _ in peaks)))
    sizes /= unit
    figure = new_figure(1.0 + 0.42 * len(known))
    axes = figure.subplots()
    names = [engine["name"] for engine in known]
    layers = (
        ("weights", LIGHT.weights),
        ("KV at its fullest", LIGHT.original),
        ("arena never used", LIGHT.spare),
        ("overhead of the policy", LIGHT.overhead),
        ("all else", LIGHT.other),
    )
    start = np.zeros(len(known))
    for n, (label, color) in enumerate(layers):
        if sizes[:, n].any():
            axes.barh(
                names, sizes[:, n], 0.6, start, color=color, ec=LIGHT.paper, lw=1, label=label
            )
        start += sizes[:, n]
    for n, ((peak, what), end) in enumerate(zip(peaks, start, strict=True)):
        if peak:
            axes.plot([peak / unit] * 2, [n - 0.36, n + 0.36], color=LIGHT.ink, lw=2)
        shown = f"{peak / unit:,.1f} {unit_name} {what}" if peak else f"{end:,.1f} {unit_name}"
        axes.annotate(
            shown,
            (max(end, peak / unit), n),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=LIGHT.ink,
            fontsize=9,
        )
    dress(axes, grid="x")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.28 * max(axes.get_xlim()[1] / 1.05, 1e-9))
    axes.tick_params(axis="y", labelcolor=LIGHT.ink)
    axes.set_xlabel(unit_name)
    legend(figure, ncols=len(layers))
    return svg(figure)


def _peak(engine: Mapping[str, Any]) -> tuple[float, str]:
    """The most memory that was measured, and of what; 0 if none was."""
    if engine["peak_device_used_bytes"]:
        return engine["peak_device_used_bytes"], "of the device at its peak"
    return engine["peak_rss_bytes"] or 0, "resident at its peak"


def _layers(engine: Mapping[str, Any]) -> tuple[float, ...]:
    weights, arena = engine["weights_bytes"] or 0, engine["arena_bytes"] or 0
    used = min(engine["peak_kv_bytes"] or 0, arena)
    overhead = engine["overhead_bytes"] or 0
    rest = _peak(engine)[0] - weights - arena - overhead
    return weights, used, arena - used, overhead, max(rest, 0)
