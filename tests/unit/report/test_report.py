import re
from typing import Any

import pyarrow as pa
import pytest

from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.html import render_html
from arkv_sglang.report.plot_arena import OWNERS, arena_over_time
from arkv_sglang.report.plots import kv_over_time
from arkv_sglang.report.table import WIDTH, format_table
from arkv_sglang.report.text import show_bytes, show_number

COLUMNS = {
    "doc_id": pa.string(),
    "status": pa.string(),
    "error": pa.string(),
    "engine": pa.string(),
    "prompt_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "ttft_s": pa.float64(),
    "e2e_s": pa.float64(),
    "strategy": pa.string(),
    "n_chunks": pa.int64(),
    "n_cut_short": pa.int64(),
    "kv_rows_original": pa.int64(),
    "kv_rows_quantized": pa.int64(),
    "kv_rows_evicted": pa.int64(),
}
# A piece of one of the first engine's documents was done by the second.
SERVED = {
    "e0": {"prompt_tokens": 340, "cached_tokens": 140, "output_tokens": 35},
    "e1": {"prompt_tokens": 160, "cached_tokens": 60, "output_tokens": 15},
}
CONFIG = {"run": {"sample_period_s": 1.0}, "engine": {"kv_policy": "arkv"}}


def rows(*values: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(values), schema=pa.schema(COLUMNS))


def answered(n: int, engine: str) -> dict[str, Any]:
    return {
        "doc_id": f"d{n}",
        "status": "ok",
        "engine": engine,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 10,
        "ttft_s": float(n),
        "e2e_s": 2.0 * n,
        "kv_rows_evicted": 5,
    }


def engine(name: str, peaks: dict[str, float], ready_s: float | None = 2.0) -> dict[str, Any]:
    return {
        "name": name,
        "info": {"device": "cpu", "capacity_tokens": 1000, "context_tokens": 8192},
        "served": SERVED[name],
        "deaths": 0,
        "gone": None,
        "ready_s": ready_s,
        "done_s": None if ready_s is None else ready_s + 10,
        "peaks": peaks,
        "samples": [],
    }


@pytest.fixture
def report() -> dict[str, Any]:
    table = rows(
        *(answered(n, "e0") for n in range(4)),
        answered(4, "e1"),
        {"doc_id": "long", "status": "too_long", "error": "too long", "prompt_tokens": 9000},
    )
    arkv = {"arkv_arena_bytes": 500.0, "kv_pool_bytes": 400.0, "arkv_rows_evicted_total": 7.0}
    engines = [engine("e0", arkv), engine("e1", {"kv_pool_bytes": 400.0}, ready_s=4.0)]
    run = {"id": "r", "started_at": "2026-01-01T00:00:00+00:00", "wall_s": 20.0}
    return build_report(table, run, engines, CONFIG, {"sglang": "0.5.23"})


def test_figures_per_engine_and_in_all(report: dict[str, Any]) -> None:
    first, second = report["engines"]
    totals = report["totals"]
    assert (first["documents"]["ok"], second["documents"]["ok"]) == (4, 1)
    assert totals["documents"] == {"ok": 5, "too_long": 1, "invalid": 0, "error": 0, "all": 6}
    assert totals["wall_s"] == 12.0 and first["wall_s"] == 10.0
    assert totals["prompt_tokens"] == 500 and totals["documents_per_min"] == 25.0
    assert first["prefill_tokens_per_s"] == 20.0 and first["decode_tokens_per_s"] == 3.5
    assert (first["tokens_per_s"], second["tokens_per_s"]) == (37.5, 17.5)
    assert first["ttft_p50_s"] == 1.5 and totals["e2e_p95_s"] == pytest.approx(7.6)
    assert (first["arena_bytes"], second["arena_bytes"], totals["arena_bytes"]) == (500, 400, 900)
    assert (first["rows_evicted"], second["rows_evicted"], totals["rows_evicted"]) == (7, None, 7)
    assert first["documents_rows_evicted"] == 20 and first["documents_rows_original"] is None
    assert report["failures"] == [
        {"doc_id": "long", "status": "too_long", "error": "too long", "engine": None}
    ]


def test_a_run_without_documents_or_engines_still_has_a_report() -> None:
    run = {"id": "r", "started_at": "", "wall_s": 1.0}
    report = build_report(rows(), run, [engine("e0", {}, ready_s=None)], CONFIG, {})
    assert report["totals"]["tokens_per_s"] is None and report["totals"]["documents"]["all"] == 0
    assert "Nothing was sampled" in render_html(report, {"e0": []})
    assert format_table(report)


def test_the_table_fits_its_width_and_ends_with_the_total(report: dict[str, Any]) -> None:
    lines = format_table(report).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "peak KV bf16" in lines[0] and "rows evicted" in lines[0]
    assert re.match(r"\s*all\s+5/6\s+500\s+50\s", lines[-1])


def test_the_page_needs_nothing_else(report: dict[str, Any]) -> None:
    report["failures"][0]["error"] = "<script>alert(1)</script>"
    sample = {"kv_original_bytes": 1 << 20, "kv_quantized_bytes": 1 << 19, "kv_pool_bytes": 1 << 22}
    samples = [{"t_s": float(t), "running_requests": t, **sample} for t in range(5)]
    page = render_html(report, {"e0": samples, "e1": []})
    assert page.count("KV memory of e0 over time") == 1 and "KV memory of e1" not in page
    assert not re.search(r"<script|<link|(src|href)=\"(?!data:)", page)
    assert "&lt;script&gt;" in page and "kv_policy: arkv" in page


def test_plots_are_the_same_every_time() -> None:
    sample = {"t_s": 0.0, "kv_original_bytes": 5, "kv_quantized_bytes": 6, "running_requests": 1}
    first = kv_over_time("engine", [sample, sample | {"t_s": 1.0}])
    assert first is not None and "<svg" in first
    assert kv_over_time("engine", [{"t_s": 0.0}]) is None
    assert kv_over_time("engine", [{"t_s": 0.0, "kv_original_bytes": 5}]) is not None


def test_the_arena_over_time_has_a_layer_for_each_owner_in_each_arm() -> None:
    def samples(mib: int) -> list[dict[str, float]]:
        return [{"s": s} | dict.fromkeys(OWNERS, mib * 2.0**20) for s in (0.0, 2.0)]

    svg = arena_over_time({"one": samples(1), "two": samples(2)})
    for _, color in OWNERS.values():
        # Once in each arm and once in the legend.
        assert svg.count(f"fill: {color}") == 3
    assert svg != arena_over_time({"one": samples(1), "two": samples(1)})


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.00 GiB")],
)
def test_bytes_are_shown_in_units(value: float | None, shown: str) -> None:
    assert show_bytes(value) == shown


def test_numbers_are_grouped() -> None:
    assert show_number(1234567.8, 1) == "1,234,567.8" and show_number(None) == "-"
