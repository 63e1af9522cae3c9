"""Plots of what happened over time, as SVG text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from arkv_sglang.report.figures import (
    LIGHT,
    byte_unit,
    count_axis,
    dress,
    elapsed_unit,
    legend,
    new_figure,
    short_count,
    svg,
)

MAX_POINTS = 300
# An engine that was not sampled for so many periods was not up.
GAP_PERIODS = 5
# Share of the width that two words need.
ROOM_FOR_WORDS = 0.06
NOTHING = {"kv_original_bytes": 0, "kv_quantized_bytes": 0, "running_requests": 0}


def kv_over_time(
    name: str,
    samples: Sequence[Mapping[str, Any]],
    until_s: float | None = None,
) -> str | None:
    """KV bytes by tier and running requests of one engine; None when nothing was sampled.

    ``until_s``: the end of the run, if the engine may have ended before it.
    """
    samples = [sample for sample in samples if "kv_original_bytes" in sample]
    if not samples:
        return None
    size_bytes = samples[-1].get("arkv_arena_bytes", samples[-1].get("kv_pool_bytes"))
    times = [sample["t_s"] for sample in samples]
    gaps = _gaps(times, until_s)
    end_s = max([times[-1], *(end for _, end in gaps)])
    unit_s, unit_name = elapsed_unit(end_s)
    points = _with_gaps(_thinned(samples), gaps)
    most_bytes = max(size_bytes or 0, *(_kv_bytes(point) for point in points))
    unit, byte_name = byte_unit(most_bytes)
    figure = new_figure(3.3)
    tiers, running = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    x = [point["t_s"] / unit_s for point in points]
    tiers.stackplot(
        x,
        [
            [p.get(f"kv_{tier}_bytes", 0) / unit for p in points]
            for tier in ("original", "quantized")
        ],
        labels=["bf16 rows", "fp8 rows"],
        colors=[LIGHT.original, LIGHT.quantized],
        step="post",
    )
    if size_bytes:
        tiers.axhline(
            size_bytes / unit, color=LIGHT.soft, ls=(0, (4, 3)), lw=1, label="whole arena"
        )
    requests = [point.get("running_requests", 0) for point in points]
    running.fill_between(x, requests, step="post", color=LIGHT.soft, alpha=0.35, lw=0)
    running.step(x, requests, where="post", color=LIGHT.soft, lw=1)
    for axes in (tiers, running):
        dress(axes)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, max(end_s / unit_s, 1e-9))
        for start, end in gaps:
            axes.axvspan(start / unit_s, end / unit_s, color=LIGHT.bad, alpha=0.12, lw=0)
    for start, end in gaps:
        if end - start > ROOM_FOR_WORDS * end_s:
            place = ((start + end) / 2 / unit_s, tiers.get_ylim()[1] / 2)
            tiers.text(*place, "not up", color=LIGHT.bad, ha="center", fontsize=9)
    count_axis(running, max_ticks=3)
    tiers.set_ylabel(f"KV memory ({byte_name})")
    tiers.set_title(name, loc="left", fontsize=11, fontweight="bold", color=LIGHT.ink)
    running.set_ylabel("running")
    running.set_xlabel(f"{unit_name} since the run began")
    legend(figure, ncols=3)
    return svg(figure)


def throughput_over_time(throughput: Mapping[str, Any] | None) -> str | None:
    """Tokens per second, by engine while they can be told apart, above the cache hit ratio; None
    when nothing was sampled."""
    if throughput is None:
        return None
    by_engine = _most_distinct(throughput["tokens_per_s"], len(LIGHT.engines))
    hits = throughput["cache_hit_ratio"]
    bin_s = throughput["bin_s"]
    unit_s, unit_name = elapsed_unit(throughput["from_s"] + bin_s * len(hits))
    edges = [(throughput["from_s"] + n * bin_s) / unit_s for n in range(len(hits) + 1)]
    figure = new_figure(3.6)
    tokens, cache = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    tokens.stackplot(
        edges,
        [_to_the_edge(rates) for rates in by_engine.values()],
        labels=list(by_engine),
        colors=LIGHT.engines,
        step="post",
        ec=LIGHT.paper,
        lw=0.5,
    )
    average = float(np.sum(list(by_engine.values()), axis=0).mean())
    tokens.axhline(average, color=LIGHT.ink, lw=1, ls=(0, (4, 3)))
    tokens.annotate(
        f"{short_count(average)}/s on average",
        (1, average),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=LIGHT.ink,
        fontsize=9,
        bbox={"fc": LIGHT.paper, "ec": "none", "alpha": 0.8, "pad": 1},
    )
    if edges[0] > ROOM_FOR_WORDS * edges[-1]:
        tokens.annotate(
            "starting",
            (edges[0] / 2, 0),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=LIGHT.soft,
            fontsize=9,
        )
    percents = [0 if ratio is None else 100 * ratio for ratio in hits]
    cache.fill_between(edges, _to_the_edge(percents), step="post", color=LIGHT.good, lw=0)
    for axes in (tokens, cache):
        dress(axes)
    count_axis(tokens)
    tokens.set_xlim(0, edges[-1])
    cache.set_ylim(0, 100)
    cache.set_yticks([0, 50, 100])
    tokens.set_ylabel("tokens/s")
    cache.set_ylabel("cache\nhits (%)")
    cache.set_xlabel(f"{unit_name} since the run began; a document counts when it is done")
    legend(figure, ncols=len(by_engine))
    return svg(figure)


def _to_the_edge(values: Sequence[float]) -> list[float]:
    """A step for each bin needs the last value once more, at the bin's right edge."""
    return [*values, values[-1]]


def _most_distinct(
    by_engine: Mapping[str, Sequence[float]], limit: int
) -> dict[str, Sequence[float]]:
    if len(by_engine) <= limit:
        return dict(by_engine)
    total = np.sum(list(by_engine.values()), axis=0)
    return {f"all {len(by_engine)} engines": total.tolist()}


def _kv_bytes(sample: Mapping[str, Any]) -> float:
    return float(sample["kv_original_bytes"] + sample.get("kv_quantized_bytes", 0))


def _thinned(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most MAX_POINTS, each the fullest of its stretch, so that no peak is lost."""
    stride = -(-len(samples) // MAX_POINTS)
    stretches = (samples[n : n + stride] for n in range(0, len(samples), stride))
    return [max(stretch, key=_kv_bytes) for stretch in stretches]


def _gaps(times: Sequence[float], until_s: float | None) -> list[tuple[float, float]]:
    """When the engine was not sampled, though it had been before."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    if not steps:
        return []
    longest = GAP_PERIODS * median(steps)
    ends = [*times, until_s] if until_s is not None else times
    return [(a, b) for a, b in pairwise(ends) if b - a > longest]


def _with_gaps(
    points: Sequence[Mapping[str, Any]], gaps: Sequence[tuple[float, float]]
) -> list[Mapping[str, Any]]:
    """Nothing from the beginning of a gap to its end."""
    kept: list[Mapping[str, Any]] = list(points)
    for start, _ in gaps:
        after = bisect_right(kept, start, key=lambda point: point["t_s"])
        kept.insert(after, NOTHING | {"t_s": start})
    return kept
