"""The arena of each engine in a comparison, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from arkv_sglang.report.figures import svg

MIB = 1 << 20
OWNERS = {
    "tree_original": ("tree, bf16", "#1f4e8c"),
    "prompts_original": ("prompts, bf16", "#7ba7d9"),
    "views_original": ("views, bf16", "#4c9a6a"),
    "tree_quantized": ("tree, fp8", "#c77b1c"),
    "views_quantized": ("views, fp8", "#f2c063"),
}


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
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(layers, labels, loc="outside upper right", ncols=len(OWNERS), frameon=False)
    figure.supylabel("KV memory in use (MiB)", fontsize="medium")
    panels[-1].set_xlabel("seconds since the run began")
    return svg(figure)
