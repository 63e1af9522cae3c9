"""The tables of a dry run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from arkv_sglang.report.table import WIDTH
from arkv_sglang.report.text import show_bytes, show_count, show_duration, show_number

MISSING_MEMORY = (
    "How many requests run at once hangs on the KV memory of an engine, which is not known before "
    "it starts: set engine.max_total_tokens, or pass --kv-gib, --from-report"
)
MISSING_TIME = "Pass --from-report FILE to estimate the time"


def print_plan(plan: Mapping[str, Any], console: Console) -> None:
    """Print what a dry run found. A log has no width of its own, so it gets enough."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    for part in _parts(plan):
        # What names are given in brackets is not markup.
        console.print(part, markup=False, highlight=False)


def _parts(plan: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"Dry run of {plan['input']} with {plan['model']}", style="bold")
    yield _corpus(plan)
    for reason, count in plan["too_long_reasons"]:
        yield Text(f"  {count:,} cannot be cut: {reason}", style="red")
    for reason, count in plan["invalid_reasons"]:
        yield Text(f"  {count:,} invalid: {reason}", style="red")
    if plan["strategy"] != "single" and plan["limit_of_cuts"] > plan["max_prompt_tokens"]:
        yield Text(
            f"Careful: documents were cut into prompts of up to {plan['limit_of_cuts']:,} tokens; "
            "with --kv-gib or engine.max_total_tokens they are cut as they will be.",
            style="yellow",
        )
    yield ""
    if plan["kv"]:
        yield Text(f"KV memory with answers of {plan['max_new_tokens']:,} tokens", style="bold")
        yield _kv(plan)
        yield from _kv_notes(plan)
    elif plan["kv_unknown"]:
        yield Text(f"KV memory is not reckoned: {plan['kv_unknown']}.", style="yellow")
    yield ""
    yield from _audit(plan)
    yield from _time(plan)
    for warning in plan["warnings"]:
        yield Text(f"Careful: {warning}.", style="red")


def _corpus(plan: Mapping[str, Any]) -> Table:
    table = _table("", "")
    documents, tokens = plan["documents"], plan["prompt_tokens"]
    too_long = documents["too_long"]
    table.add_row("documents", show_number(documents["all"]))
    table.add_row("  that fit", show_number(documents["fits"]))
    if documents["cut"]:
        table.add_row(f"  of them in chunks ({plan['strategy']})", show_number(documents["cut"]))
    why = f"over {plan['max_prompt_tokens']:,} tokens"
    table.add_row(
        f"  too long ({why if plan['strategy'] == 'single' else 'and cannot be cut'})",
        show_number(too_long),
        style="red" if too_long else None,
    )
    table.add_row(
        "  invalid",
        show_number(documents["invalid"]),
        style="red" if documents["invalid"] else None,
    )
    if documents["cut"]:
        table.add_row("chunks", show_number(plan["chunks"]))
    table.add_row("requests", show_number(plan["requests"]))
    if tokens:
        table.add_section()
        label = "prompt tokens of whole documents" + ", too long ones too" * bool(too_long)
        for name in ("min", "median", "p95", "max", "total"):
            table.add_row(f"{label}: {name}", show_number(tokens[name]))
    return table


def _kv(plan: Mapping[str, Any]) -> Table:
    table = _table(
        "policy",
        "budget",
        "median request",
        "longest request",
        "its rows bf16 / fp8 / evicted",
        "at once: median",
        "longest",
    )
    for line in plan["kv"]:
        tiers = (line[f"rows_{tier}_ratio"] for tier in ("original", "quantized", "evicted"))
        table.add_row(
            line["policy"] + (" (configured)" if line["is_configured"] else ""),
            "" if line["budget"] is None else f"{line['budget']:,}",
            show_bytes(line["median_bytes"]),
            show_bytes(line["longest_bytes"]),
            " / ".join(f"{100 * ratio:.0f}" for ratio in tiers) + " %",
            show_number(line["at_once_median"]),
            show_number(line["at_once_longest"]),
            style="bold" if line["is_configured"] else None,
        )
    return table


def _kv_notes(plan: Mapping[str, Any]) -> Iterator[str]:
    memory = plan["memory"]
    if memory is None:
        yield MISSING_MEMORY + (" or --probe." if plan["can_probe"] else ".")
        return
    yield (
        f"KV memory of an engine: {show_bytes(memory['bytes'])}, {memory['tokens']:,} tokens in "
        f"bf16 ({memory['source']}). Prefixes that documents share make room for more at once."
    )
    if plan["when"] == "pressure":
        yield "With when: pressure a document keeps its whole KV until memory runs short."
    most = max(line["at_once_median"] for line in plan["kv"] if line["is_configured"])
    if most > plan["window_docs"]:
        yield (
            f"engines.window_docs is {plan['window_docs']}: raise it, or fewer run at once than "
            "the memory holds."
        )


def _audit(plan: Mapping[str, Any]) -> Iterator[str]:
    if audit := plan["audit"]:
        yield (
            f"Audit: {show_count(audit['documents'], 'document')} again with full KV, and "
            f"{audit['repeat_documents']:,} of them twice, about {audit['prompt_tokens']:,} prompt "
            "tokens."
        )
        yield ""


def _time(plan: Mapping[str, Any]) -> Iterator[RenderableType]:
    time = plan["time"]
    if time is None:
        if plan["requests"]:
            probe = ", or --probe N to run N documents first" if plan["can_probe"] else ""
            yield f"{MISSING_TIME}{probe}."
        return
    yield Text(f"Time, from a {time['source']}", style="bold")
    table = _table("", "")
    table.add_row("engines", show_number(time["engines"]))
    table.add_row("tokens/s of each", show_number(time["tokens_per_s_per_engine"], 1))
    table.add_row("answer, tokens on average", show_number(time["output_tokens_per_request"], 1))
    table.add_row("starting engines", show_duration(time["start_s"]))
    table.add_row("generating", show_duration(time["generating_s"]))
    table.add_row("in all, about", show_duration(time["all_s"]), style="bold")
    if audit := plan["audit"]:
        table.add_row("and its audit, at least", show_duration(audit["least_s"]))
    yield table
    for warning in time["warnings"]:
        yield Text(f"Careful: {warning}.", style="yellow")


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=bool(first))
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
