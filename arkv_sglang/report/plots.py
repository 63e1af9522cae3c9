"""Plots as SVG text. Drawn without pyplot, so nothing global and no display is touched."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

MIB = 1 << 20
OWNERS = {
    "tree_original": ("tree, bf16", "#1f4e8c"),
    "prompts_original": ("prompts, bf16", "#7ba7d9"),
    "views_original": ("views, bf16", "#4c9a6a"),
    "tree_quantized": ("tree, fp8", "#c77b1c"),
    "views_quantized": ("views, fp8", "#f2c063"),
}
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
    return _svg(figure)


def arena_over_time(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Arena bytes by owner and tier, one panel for each arm. Each sample has ``s``, seconds, and
    bytes by the names of `OWNERS`."""
    figure = Figure(figsize=(9, 1.7 * len(arms) + 0.8), layout="constrained")
    panels = figure.subplots(len(arms), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    labels, colors = zip(*OWNERS.values(), strict=True)
    for panel, (name, samples) in zip(panels, arms.items(), strict=True):
        layers = panel.stackplot(
            [sample["s"] for sample in samples],
            [[sample[owner] / MIB for sample in samples] for owner in OWNERS],
            colors=colors,
            step="post",
        )
        panel.set_title(name, loc="left", fontsize="medium")
    figure.legend(layers, labels, loc="outside upper right", ncols=len(OWNERS), frameon=False)
    figure.supylabel("KV memory in use (MiB)", fontsize="medium")
    panels[-1].set_xlabel("seconds since the run began")
    return _svg(figure)


def _svg(figure: Figure) -> str:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
