"""Figures of a run, per engine and in all. Units are in the key names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arkv_sglang.report.corpus import by_length, corpus, extremes, strategies
from arkv_sglang.report.failures import failure_reasons
from arkv_sglang.report.quantiles import latency_curve, quantile
from arkv_sglang.report.throughput import throughput

FORMAT = 2
STATUSES = ("ok", "too_long", "invalid", "error")
PERCENTS = (50, 90, 95, 99)
MAX_FAILURES = 100
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")

# Report key <- the telemetry keys that may hold it (the first that is there wins).
_LEVELS = {
    "weights_bytes": ("weights_bytes",),
    "arena_bytes": ("arkv_arena_bytes", "kv_pool_bytes"),
    "overhead_bytes": ("arkv_overhead_bytes",),
    "peak_device_used_bytes": ("device_used_bytes",),
    "peak_rss_bytes": ("rss_bytes",),
    "peak_running_requests": ("running_requests",),
    "peak_kv_bytes": ("kv_bytes",),
    "peak_kv_original_bytes": ("kv_original_bytes",),
    "peak_kv_quantized_bytes": ("kv_quantized_bytes",),
    "rows_evicted": ("arkv_rows_evicted_total",),
    "rows_demoted": ("arkv_rows_demoted_total",),
    "tree_tokens_evicted": ("arkv_tokens_evicted_total",),
    "requests_retracted": ("arkv_requests_retracted_total",),
}


def build_report(
    rows: pa.Table,
    run: Mapping[str, Any],
    engines: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    versions: Mapping[str, str],
    merged: pa.Table | None = None,
) -> dict[str, Any]:
    """Everything that report.json holds. ``rows`` are those that this attempt committed; an engine
    record has name, info, served, deaths, gone, ready_s and done_s (seconds since the run began),
    peaks, samples. ``merged``: one row for each document of the input, also those that earlier
    attempts did: its documents are counted in the totals, and its failures told. ``audit`` is left
    open, as it comes after the report.

    A document counts at the engine that gave its summary; an engine's tokens are those of all
    requests that it answered, the totals' those of the documents that are ok. Peaks are those of
    the samples. In the totals they are sums over the engines."""
    per_engine = [_engine(rows, engine) for engine in engines]
    begun = [engine["ready_s"] for engine in engines if engine["ready_s"] is not None]
    ended = [engine["done_s"] for engine in engines if engine["done_s"] is not None]
    wall_s = max(ended) - min(begun) if begun and ended else None
    totals = _figures(rows, _tokens(rows), wall_s) | {key: _sum(per_engine, key) for key in _LEVELS}
    totals["deaths"] = sum(engine["deaths"] for engine in engines)
    samples = {engine["name"]: engine["samples"] for engine in engines}
    merged = rows if merged is None else merged
    totals |= {"documents": _documents(merged), "documents_of_attempt": totals["documents"]}
    failed = merged.filter(pc.not_equal(merged["status"], "ok"))
    return {
        "format": FORMAT,
        "run": {**run, "generating_s": wall_s},
        "totals": totals,
        "engines": per_engine,
        "corpus": corpus(rows),
        "strategies": strategies(rows),
        "by_length": by_length(rows),
        "latency_curve": latency_curve(rows),
        "throughput": throughput(samples, min(begun), max(ended)) if wall_s else None,
        "slowest": extremes(rows, "e2e_s"),
        "longest": extremes(rows, "prompt_tokens"),
        "failure_reasons": failure_reasons(failed),
        "failures": failed.select(["doc_id", "status", "error", "engine"])
        .slice(0, MAX_FAILURES)
        .to_pylist(),
        "failures_left_out": max(0, failed.num_rows - MAX_FAILURES),
        "audit": None,
        "config": dict(config),
        "versions": dict(versions),
    }


def _engine(rows: pa.Table, engine: Mapping[str, Any]) -> dict[str, Any]:
    own = rows.filter(pc.fill_null(pc.equal(rows["engine"], engine["name"]), False))
    ready_s, done_s, peaks = engine["ready_s"], engine["done_s"], engine["peaks"]
    wall_s = None if ready_s is None or done_s is None else done_s - ready_s
    info = engine["info"] or {}
    return {
        "name": engine["name"],
        "device": info.get("device"),
        "capacity_tokens": info.get("capacity_tokens"),
        "context_tokens": info.get("context_tokens"),
        "ready_s": ready_s,
        "done_s": done_s,
        "deaths": engine["deaths"],
        "gone": engine["gone"],
        **_figures(own, engine["served"], wall_s),
        **{key: _first(peaks, names) for key, names in _LEVELS.items()},
    }


def _figures(rows: pa.Table, tokens: Mapping[str, int], wall_s: float | None) -> dict[str, Any]:
    documents = _documents(rows)
    done = rows.filter(pc.equal(rows["status"], "ok"))
    prompt, cached, output = (tokens[name] for name in _TOKENS)
    return {
        "documents": documents,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": output,
        "cache_hit_ratio": cached / prompt if prompt else None,
        "wall_s": wall_s,
        "documents_per_min": _rate(documents["ok"] * 60, wall_s),
        "prefill_tokens_per_s": _rate(prompt - cached, wall_s),
        "decode_tokens_per_s": _rate(output, wall_s),
        "tokens_per_s": _rate(prompt + output, wall_s),
        **{
            f"{name}_p{percent}_s": quantile(done[f"{name}_s"], percent / 100)
            for name in ("ttft", "e2e")
            for percent in PERCENTS
        },
        **{
            f"documents_{name}": pc.sum(done[f"kv_{name}"]).as_py()
            for name in ("rows_original", "rows_quantized", "rows_evicted")
        },
    }


def _tokens(rows: pa.Table) -> dict[str, int]:
    done = rows.filter(pc.equal(rows["status"], "ok"))
    return {name: int(pc.sum(done[name]).as_py() or 0) for name in _TOKENS}


def _documents(rows: pa.Table) -> dict[str, int]:
    return {status: _count(rows, status) for status in STATUSES} | {"all": rows.num_rows}


def _count(rows: pa.Table, status: str) -> int:
    return int(pc.sum(pc.equal(rows["status"], status)).as_py() or 0)


def _rate(amount: float, wall_s: float | None) -> float | None:
    return amount / wall_s if wall_s else None


def _first(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _sum(engines: Sequence[Mapping[str, Any]], key: str) -> float | None:
    known = [engine[key] for engine in engines if engine[key] is not None]
    return sum(known) if known else None
