"""Plots of the corpus by length, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arkv_sglang.report.figures import (
    LIGHT,
    ON_QUANTIZED,
    count_axis,
    dress,
    legend,
    new_figure,
    svg,
    token_axis,
)
from arkv_sglang.report.text import show_count


def length_histogram(corpus: Mapping[str, Any]) -> str | None:
    """Documents by prompt tokens, those without a summary on top; None where all are as long."""
    bins, tokens = corpus["length_histogram"], corpus["prompt_tokens"]
    if len(bins) < 2:
        return None
    figure = new_figure(2.9)
    axes = figure.subplots()
    left = [max(each["from_tokens"], 1) for each in bins]
    width = [each["to_tokens"] - start for each, start in zip(bins, left, strict=True)]
    ok = [each["ok_documents"] for each in bins]
    failed = [each["failed_documents"] for each in bins]
    style: dict[str, Any] = {"align": "edge", "ec": LIGHT.paper, "lw": 0.6}
    axes.bar(left, ok, width, color=LIGHT.original, label="summarized", **style)
    if any(failed):
        axes.bar(left, failed, width, ok, color=LIGHT.bad, label="without a summary", **style)
    dress(axes)
    token_axis(axes, left[0], bins[-1]["to_tokens"])
    axes.set_ylabel("documents")
    # Room for the two words.
    axes.set_ylim(0, 1.16 * max(a + b for a, b in zip(ok, failed, strict=True)))
    count_axis(axes)
    _mark(axes, tokens["p50"], "median", "right")
    _mark(axes, tokens["p95"], "p95", "left")
    legend(figure, ncols=2)
    return svg(figure)


def tiers_by_length(by_length: Sequence[Mapping[str, Any]]) -> str | None:
    """Which share of rows ended in each tier, by document length; None under no policy."""
    known = [octave for octave in by_length if octave["rows_original"] is not None]
    if not known:
        return None
    figure = new_figure(0.9 + 0.38 * len(known))
    axes = figure.subplots()
    labels = [f"{octave['from_tokens']:,} to {octave['to_tokens'] - 1:,}" for octave in known]
    start = [0.0] * len(known)
    tiers = (
        ("rows_original", "kept in bf16", LIGHT.original, LIGHT.paper),
        ("rows_quantized", "kept in fp8", LIGHT.quantized, ON_QUANTIZED),
        ("rows_evicted", "evicted", LIGHT.evicted, LIGHT.ink),
    )
    for key, label, color, ink in tiers:
        shares = [100 * (octave[key] or 0) / max(_rows(octave), 1) for octave in known]
        bars = axes.barh(
            labels, shares, 0.72, start, color=color, ec=LIGHT.paper, lw=1, label=label
        )
        texts = [f"{share:.0f} %" if share >= 5 else "" for share in shares]
        axes.bar_label(bars, texts, label_type="center", color=ink, fontsize=9)
        start = [a + b for a, b in zip(start, shares, strict=True)]
    for n, octave in enumerate(known):
        documents = show_count(octave["documents"], "document")
        axes.text(101, n, documents, va="center", color=LIGHT.soft, fontsize=9)
    dress(axes, grid=None)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(0, 100)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelcolor=LIGHT.ink)
    axes.set_ylabel("prompt tokens")
    legend(figure, ncols=3)
    return svg(figure)


def _rows(octave: Mapping[str, Any]) -> int:
    tiers = ("rows_original", "rows_quantized", "rows_evicted")
    return sum(octave[tier] or 0 for tier in tiers)


def _mark(axes: Any, tokens: float, name: str, side: str) -> None:
    axes.axvline(tokens, color=LIGHT.ink, lw=1, ls=(0, (4, 3)))
    axes.annotate(
        f"{name} {tokens:,.0f}",
        (tokens, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if side == "right" else 5, -4),
        textcoords="offset points",
        ha=side,
        va="top",
        color=LIGHT.ink,
        fontsize=9,
    )
