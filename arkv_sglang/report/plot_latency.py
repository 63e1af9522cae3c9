"""Plots of how long documents took, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arkv_sglang.report.figures import (
    LIGHT,
    dress,
    new_figure,
    seconds_axis,
    short_seconds,
    svg,
    token_axis,
)

PERCENTS = (50, 90, 95, 99)
MIN_ANSWERS = 5


def latency(
    curve: Sequence[Mapping[str, float]],
    totals: Mapping[str, Any],
    by_length: Sequence[Mapping[str, Any]],
) -> str | None:
    """Which share of documents was done within which time, and times by document length; None
    with too few answers for a curve."""
    if totals["documents"]["ok"] < MIN_ANSWERS or not curve:
        return None
    figure = new_figure(3.6)
    shares, lengths = figure.subplots(1, 2, width_ratios=[1.15, 1])
    _draw_shares(shares, curve, totals)
    _draw_lengths(lengths, [each for each in by_length if each["e2e_p50_s"] is not None])
    return svg(figure)


def _draw_shares(
    axes: Any, curve: Sequence[Mapping[str, float]], totals: Mapping[str, Any]
) -> None:
    shown = (("ttft", "first token", LIGHT.first), ("e2e", "whole answer", LIGHT.original))
    percent = [100 * point["share"] for point in curve]
    for name, label, color in shown:
        times = [max(point[f"{name}_s"], 1e-4) for point in curve]
        axes.plot(times, percent, color=color, lw=2)
        marks = [max(totals[f"{name}_p{p}_s"], 1e-4) for p in PERCENTS]
        axes.plot(marks, PERCENTS, "o", color=color, ms=5, mec=LIGHT.paper, mew=1)
        side = "right" if name == "ttft" else "left"
        axes.annotate(
            f"{label}\np50 {short_seconds(_round(marks[0]))}",
            (marks[0], 50),
            xytext=(-8 if side == "right" else 8, 0),
            textcoords="offset points",
            ha=side,
            va="center",
            color=color,
            fontsize=9,
        )
    dress(axes)
    every = [max(point[key], 1e-4) for point in curve for key in ("ttft_s", "e2e_s")]
    axes.set_xscale("log")
    seconds_axis(axes.xaxis, min(every), max(every))
    axes.margins(x=0.12)
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 90, 99])
    axes.set_ylabel("% of answered documents")
    axes.set_title("Done within", loc="left", fontsize=10, color=LIGHT.ink)


def _draw_lengths(axes: Any, by_length: Sequence[Mapping[str, Any]]) -> None:
    middle = [(each["from_tokens"] * each["to_tokens"]) ** 0.5 for each in by_length]
    for name, color in (("ttft", LIGHT.first), ("e2e", LIGHT.original)):
        p50, p95 = (
            [max(each[f"{name}_p{percent}_s"], 1e-4) for each in by_length] for percent in (50, 95)
        )
        axes.fill_between(middle, p50, p95, color=color, alpha=0.18, lw=0)
        axes.plot(middle, p50, "o-", color=color, lw=2, ms=5, mec=LIGHT.paper, mew=1)
    dress(axes)
    every = [
        each[f"{name}_p{p}_s"] for each in by_length for name in ("ttft", "e2e") for p in (50, 95)
    ]
    axes.set_yscale("log")
    seconds_axis(axes.yaxis, max(min(every), 1e-4), max(every))
    token_axis(axes, by_length[0]["from_tokens"], by_length[-1]["to_tokens"])
    axes.set_title("By length: p50, shaded up to p95", loc="left", fontsize=10, color=LIGHT.ink)


def _round(seconds: float) -> float:
    return float(f"{seconds:.3g}")
