"""The report as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from arkv_sglang.eval.arms import FULL_KV
from arkv_sglang.report.text import MISSING, show_number, show_ratio


def as_table(report: Mapping[str, Any]) -> Table:
    """A line for each task and arm, and below them the means over tasks."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("task", "arm"):
        table.add_column(name)
    for name in (
        *("score", "95 % interval", "wins-losses", "other figures"),
        *("KV bytes", "compressed", "output tok", "over full KV"),
    ):
        table.add_column(name, justify="right")
    last = None
    for each in report["results"]:
        if each["task"] != last:
            table.add_section()
        others = list(each["figures"].items())[1:]
        table.add_row(
            "" if each["task"] == last else each["task"],
            each["arm"],
            *_score(each),
            ", ".join(f"{name} {value:.3g}" for name, value in others),
            show_ratio(each["kv_bytes_ratio"]),
            f"{each['compressed_samples']}/{each['samples']}",
            show_number(each["output_tokens"], 1),
            show_number(each["output_tokens_over_full_kv"], 2),
        )
        last = each["task"]
    for n, each in enumerate(report["means"]):
        if n == 0:
            table.add_section()
        table.add_row(
            "" if n else f"mean of {len(report['counted_tasks'])}",
            each["arm"],
            *_score(each),
            "",
            show_ratio(each["kv_bytes_ratio"]),
        )
    return table


def _score(each: Mapping[str, Any]) -> tuple[str, str, str]:
    low, high = each["score_low"], each["score_high"]
    interval = MISSING if low is None else f"{low:.3f} to {high:.3f}"
    pairs = "" if each["arm"] == FULL_KV else f"{each['wins']}-{each['losses']}"
    return show_number(each["score"], 3), interval, pairs
