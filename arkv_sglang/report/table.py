"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from arkv_sglang.report.text import show_bytes, show_number, show_ratio

WIDTH = 140


def format_table(report: Mapping[str, Any]) -> str:
    """Per engine and in all, as plain text of at most WIDTH columns; documents as succeeded/all."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=False)
    table.add_column("engine")
    for heading in (
        "documents",
        "prompt tok",
        "output tok",
        "tokens/s",
        "cache hits",
        "peak running",
        "peak KV bf16",
        "peak KV fp8",
        "rows evicted",
    ):
        table.add_column(heading, justify="right")
    for engine in report["engines"]:
        table.add_row(engine["name"], *_cells(engine))
    table.add_section()
    table.add_row("all", *_cells(report["totals"]), style="bold")
    console = Console(width=WIDTH, force_terminal=False, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def _cells(figures: Mapping[str, Any]) -> list[str]:
    documents = figures["documents"]
    return [
        f"{documents['ok']:,}/{documents['all']:,}",
        show_number(figures["prompt_tokens"]),
        show_number(figures["output_tokens"]),
        show_number(figures["tokens_per_s"], 1),
        show_ratio(figures["cache_hit_ratio"]),
        show_number(figures["peak_running_requests"]),
        show_bytes(figures["peak_kv_original_bytes"]),
        show_bytes(figures["peak_kv_quantized_bytes"]),
        show_number(figures["rows_evicted"]),
    ]
