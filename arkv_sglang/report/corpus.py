"""The corpus by length: how long documents are, and what became of the short and the long ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arkv_sglang.report.quantiles import quantile

MAX_BINS = 40
NUM_EXTREMES = 10
_SHOWN = (
    "doc_id",
    "status",
    "engine",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "ttft_s",
    "e2e_s",
)
_TIERS = ("rows_original", "rows_quantized", "rows_evicted")


def corpus(rows: pa.Table) -> dict[str, Any]:
    """Prompt tokens of all documents that have a prompt, and their histogram."""
    known = rows.filter(pc.is_valid(rows["prompt_tokens"]))
    lengths = known["prompt_tokens"]
    summary = None
    if known.num_rows:
        summary = {
            "min": pc.min(lengths).as_py(),
            "p50": quantile(lengths, 0.5),
            "p95": quantile(lengths, 0.95),
            "max": pc.max(lengths).as_py(),
            "mean": pc.mean(lengths).as_py(),
            "total": pc.sum(lengths).as_py(),
        }
    return {
        "documents_with_prompt": known.num_rows,
        "documents_without_prompt": rows.num_rows - known.num_rows,
        "prompt_tokens": summary,
        "length_histogram": _histogram(known),
    }


def by_length(rows: pa.Table) -> list[dict[str, Any]]:
    """Answered documents from each power of two of prompt tokens to the next."""
    done = rows.filter(pc.equal(rows["status"], "ok"))
    done = done.filter(pc.greater(done["prompt_tokens"], 0))
    # Of 2**53 and less a float is exact, and so is its exponent.
    octaves = np.frexp(done["prompt_tokens"].to_numpy())[1] - 1
    return [_octave(done.filter(pa.array(octaves == n)), int(n)) for n in np.unique(octaves)]


def strategies(rows: pa.Table) -> list[dict[str, Any]]:
    """Answered documents by how they were done: in one request, or in several."""
    done = rows.filter(pc.equal(rows["status"], "ok"))
    sums = [("doc_id", "count"), ("n_chunks", "sum"), ("n_cut_short", "sum")]
    groups = done.group_by("strategy").aggregate(sums).sort_by("strategy")
    return [
        {
            "strategy": group["strategy"],
            "documents": group["doc_id_count"],
            "chunks": group["n_chunks_sum"],
            "cut_short": group["n_cut_short_sum"],
        }
        for group in groups.to_pylist()
    ]


def extremes(rows: pa.Table, column: str) -> list[dict[str, Any]]:
    """The documents with the most of ``column``."""
    known = rows.select(list(_SHOWN)).filter(pc.is_valid(rows[column]))
    order = known.sort_by([(column, "descending"), ("doc_id", "ascending")])
    return list(order.slice(0, NUM_EXTREMES).to_pylist())


def _histogram(known: pa.Table) -> list[dict[str, int]]:
    """Bins as wide as the lengths spread, each a fixed factor longer than the one before."""
    if not known.num_rows:
        return []
    lengths = known["prompt_tokens"].to_numpy()
    is_ok = pc.equal(known["status"], "ok").to_numpy()
    num_bins = min(MAX_BINS, max(1, round(2 * np.sqrt(len(lengths)))))
    low, high = max(int(lengths.min()), 1), int(lengths.max()) + 1
    edges = np.unique(np.geomspace(low, high, num_bins + 1).round().astype(np.int64))
    edges[0] = lengths.min()
    ok, failed = (np.histogram(lengths[chosen], edges)[0] for chosen in (is_ok, ~is_ok))
    return [
        {
            "from_tokens": int(edges[n]),
            "to_tokens": int(edges[n + 1]),
            "ok_documents": int(ok[n]),
            "failed_documents": int(failed[n]),
        }
        for n in range(len(edges) - 1)
    ]


def _octave(rows: pa.Table, exponent: int) -> dict[str, Any]:
    prompt, cached = (pc.sum(rows[name]).as_py() for name in ("prompt_tokens", "cached_tokens"))
    return {
        "from_tokens": 2**exponent,
        "to_tokens": 2 ** (exponent + 1),
        "documents": rows.num_rows,
        "cache_hit_ratio": (cached or 0) / prompt,
        **{
            f"{name}_p{percent}_s": quantile(rows[f"{name}_s"], percent / 100)
            for name in ("ttft", "e2e")
            for percent in (50, 95)
        },
        **{name: pc.sum(rows[f"kv_{name}"]).as_py() for name in _TIERS},
    }
