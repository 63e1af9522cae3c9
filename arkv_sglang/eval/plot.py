"""Score against bytes, one line per policy.

    python -m arkv_sglang.eval.plot REPORT.json OUT.svg

``--task NAME`` draws one task instead of the mean over tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.arms import FULL_KV
from arkv_sglang.report.figures import LIGHT, dress, legend, new_figure, svg

COLORS = (
    *(LIGHT.original, LIGHT.quantized, LIGHT.good, LIGHT.bad, LIGHT.overhead),
    *(LIGHT.first, LIGHT.weights),
)


def score_by_bytes(report: Mapping[str, Any], task: str | None = None) -> str:
    """SVG. ``task``: None is the mean over the tasks that count. Raises ConfigError."""
    lines = {arm["name"]: arm["line"] for arm in report["arms"]}
    points = report["means"] if task is None else _of_task(report, task)
    if not points:
        raise ConfigError(
            f"a plot of the mean needs a task on which full KV scores at least "
            f"{report['full_kv_at_least']:g}, got none; name one with --task"
        )
    figure = new_figure(4.2)
    axes = figure.subplots()
    dress(axes)
    for point in points:
        if point["arm"] == FULL_KV:
            axes.axhline(
                point["score"], color=LIGHT.soft, ls=(0, (4, 3)), lw=1, label="full KV (bf16)"
            )
    for n, line in enumerate(dict.fromkeys(lines.values())):
        if line == FULL_KV:
            continue
        own = [point for point in points if lines[point["arm"]] == line]
        own.sort(key=lambda point: point["kv_bytes_ratio"])
        axes.errorbar(
            [100 * point["kv_bytes_ratio"] for point in own],
            [point["score"] for point in own],
            yerr=_around(own),
            color=COLORS[n % len(COLORS)],
            marker="o",
            markersize=4,
            lw=1.5,
            elinewidth=0.8,
            capsize=2,
            label=line,
        )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("KV bytes at the end of an answer, % of bf16")
    axes.set_ylabel("score" if task else f"mean score of {len(report['counted_tasks'])} tasks")
    if task:
        axes.set_title(task, loc="left", fontsize=11, fontweight="bold", color=LIGHT.ink)
    legend(figure, ncols=5)
    return svg(figure)


def _around(points: Sequence[Mapping[str, Any]]) -> list[list[float]] | None:
    """How far the interval of each reaches down and up; None where there is none."""
    if any(point["score_low"] is None for point in points):
        return None
    down = [max(point["score"] - point["score_low"], 0) for point in points]
    up = [max(point["score_high"] - point["score"], 0) for point in points]
    return [down, up]


def _of_task(report: Mapping[str, Any], task: str) -> list[dict[str, Any]]:
    found = [each for each in report["results"] if each["task"] == task]
    if not found:
        known = ", ".join(dict.fromkeys(each["task"] for each in report["results"]))
        raise ConfigError(f"--task must be one of {known}, got {task!r}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.eval.plot")
    parser.add_argument("report", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--task")
    options = parser.parse_args()
    try:
        options.output.write_text(
            score_by_bytes(json.loads(options.report.read_text()), options.task)
        )
    except (ConfigError, OSError, ValueError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
