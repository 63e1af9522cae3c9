"""Plots as SVG text. Drawn without pyplot, so nothing global and no display is touched."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

MIB = 1 << 20
COLORS = {"original": "#3b6fb6", "quantized": "#e39b3b", "running": "#4b4b4b", "arena": "#b03a3a"}


def kv_over_time(name: str, samples: Sequence[Mapping[str, Any]]) -> str | None:
    """KV bytes by tier and running requests of one engine; None when nothing was sampled."""
    samples = [sample for sample in samples if "kv_original_bytes" in sample]
    if not samples:
        return None
    seconds = [sample["t_s"] for sample in samples]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    tiers, running = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    tiers.stackplot(
        seconds,
        [
            [s.get(f"kv_{tier}_bytes", 0) / MIB for s in samples]
            for tier in ("original", "quantized")
        ],
        labels=["bf16 rows", "fp8 rows"],
        colors=[COLORS["original"], COLORS["quantized"]],
        step="post",
    )
    size_bytes = samples[-1].get("arkv_arena_bytes", samples[-1].get("kv_pool_bytes"))
    if size_bytes:
        tiers.axhline(size_bytes / MIB, color=COLORS["arena"], ls="--", lw=1, label="whole arena")
    tiers.set_ylim(bottom=0)
    tiers.set_ylabel("KV memory in use (MiB)")
    tiers.set_title(name, loc="left")
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    running.step(
        seconds, [s.get("running_requests", 0) for s in samples], where="post", c=COLORS["running"]
    )
    running.set_ylim(bottom=0)
    running.set_ylabel("running\nrequests")
    running.set_xlabel("seconds since the run began")
    for axes in (tiers, running):
        axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
