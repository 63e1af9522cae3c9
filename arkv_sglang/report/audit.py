"""What compression cost: summaries beside those of full KV, document by document and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arkv_sglang.report.similarity import common_characters, rouge_l, words
from arkv_sglang.report.text import show_count

COMPARED, MISSING, CUT_OTHERWISE = "compared", "missing", "cut_otherwise"
NUM_WORST = 5
# Of fewer documents a bootstrap's interval would be too narrow.
MIN_FOR_INTERVAL = 10
NUM_RESAMPLES = 1000
_MEASURES = ("rouge_l", "prefix_ratio", "length_ratio")
_SHOWN = (
    *("doc_id", "rouge_l", "prompt_tokens", "output_tokens", "full_kv_output_tokens"),
    *("finish_reason", "full_kv_finish_reason", "summary", "full_kv_summary"),
)


def compare(summary: str, full_kv_summary: str) -> dict[str, Any]:
    """Of two summaries of one document. ``prefix_ratio``: of the longer one's characters, those
    before the first difference. ``length_ratio``: in words; None if the second has none."""
    one, other = words(summary), words(full_kv_summary)
    longer = max(len(summary), len(full_kv_summary))
    return {
        "rouge_l": rouge_l(one, other),
        "is_equal": summary == full_kv_summary,
        "prefix_ratio": common_characters(summary, full_kv_summary) / longer if longer else 1.0,
        "length_ratio": len(one) / len(other) if other else None,
    }


def compared_row(
    row: Mapping[str, Any], full_kv: Mapping[str, Any] | None, again: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A line of audit.parquet, from a document's rows: the run's, which is ok, that of full KV, and
    the second of full KV."""
    line = {name: row[name] for name in ("doc_id", "summary", "prompt_tokens", "output_tokens")}
    line |= {"finish_reason": row["finish_reason"], **_kv_bytes(row)}
    if full_kv is None:
        error = "the input does not have the document any more, or has it with another text"
        return line | {"status": MISSING, "error": error}
    if full_kv["status"] != "ok":
        return line | {"status": full_kv["status"], "error": full_kv["error"]}
    if (row["strategy"], row["n_chunks"]) != (full_kv["strategy"], full_kv["n_chunks"]):
        # Which would be blamed on compression.
        error = (
            f"it was done in {row['n_chunks']} pieces, and with full KV, which takes other lengths "
            f"of prompts, in {full_kv['n_chunks']}"
        )
        return line | {"status": CUT_OTHERWISE, "error": error}
    line["status"] = COMPARED
    for name in ("summary", "output_tokens", "finish_reason"):
        line[f"full_kv_{name}"] = full_kv[name]
    line |= compare(row["summary"], full_kv["summary"])
    if again is not None and again["status"] == "ok":
        noise = compare(again["summary"], full_kv["summary"])
        line |= {"again_summary": again["summary"], "again_cached_tokens": again["cached_tokens"]}
        line |= {f"again_{name}": noise[name] for name in ("rouge_l", "is_equal", "prefix_ratio")}
    return line


def _kv_bytes(row: Mapping[str, Any]) -> dict[str, int]:
    """At the document's end, and what the same rows would be if all were there in bf16."""
    rows = [row[f"kv_rows_{tier}"] for tier in ("original", "quantized", "evicted")]
    original, quantized = (row[f"kv_bytes_{tier}"] for tier in ("original", "quantized"))
    if None in rows or not rows[0]:
        return {}
    return {
        "kv_bytes": original + quantized,
        "kv_bf16_bytes": sum(rows) * original // rows[0],
    }


def audit_figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the lines of audit.parquet; there must be one that was compared."""
    done = [line for line in lines if line["status"] == COMPARED]
    changes = Counter(
        f"{line['full_kv_finish_reason']} to {line['finish_reason']}"
        for line in done
        if line["full_kv_finish_reason"] != line["finish_reason"]
    )
    unequal = [line for line in done if not line["is_equal"]]
    unequal.sort(key=lambda line: (line["rouge_l"], line["doc_id"]))
    return {
        "documents": {"chosen": len(lines), **Counter(line["status"] for line in lines)},
        **{name: spread([line[name] for line in done]) for name in _MEASURES},
        "equal_ratio": _mean([line["is_equal"] for line in done]),
        "finish_reason_changes": dict(changes),
        "noise": _noise(done),
        "kv": _kv(done),
        "worst": [
            {name: line[name] for name in _SHOWN}
            | {"common_characters": common_characters(line["summary"], line["full_kv_summary"])}
            for line in unequal[:NUM_WORST]
        ],
    }


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """None without values. ``mean_ci95``: a bootstrap's interval for the mean, None of few."""
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    interval = None
    if len(known) >= MIN_FOR_INTERVAL:
        draw = np.random.default_rng(0)
        means = [draw.choice(known, len(known)).mean() for _ in range(NUM_RESAMPLES)]
        interval = [float(bound) for bound in np.quantile(means, (0.025, 0.975))]
    return {
        "mean": float(known.mean()),
        "mean_ci95": interval,
        "median": float(np.median(known)),
        "p10": float(np.quantile(known, 0.1)),
        "min": float(known.min()),
        "max": float(known.max()),
    }


def _noise(done: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far full KV is from itself, and for the same documents from compression."""
    twice = [line for line in done if line.get("again_rouge_l") is not None]
    if not twice:
        return None
    prompt_tokens = sum(line["prompt_tokens"] for line in twice)
    cached_tokens = sum(line["again_cached_tokens"] or 0 for line in twice)
    return {
        "documents": len(twice),
        "rouge_l": spread([line["again_rouge_l"] for line in twice]),
        "equal_ratio": _mean([line["again_is_equal"] for line in twice]),
        "prefix_ratio": spread([line["again_prefix_ratio"] for line in twice]),
        "compressed_rouge_l": spread([line["rouge_l"] for line in twice]),
        "compressed_equal_ratio": _mean([line["is_equal"] for line in twice]),
        "cached_prompt_ratio": cached_tokens / prompt_tokens if prompt_tokens else None,
    }


def _kv(done: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    known = [line for line in done if line.get("kv_bf16_bytes")]
    if not known:
        return None
    kept, whole = (_mean([line[name] for line in known]) for name in ("kv_bytes", "kv_bf16_bytes"))
    return {"bytes_mean": kept, "bf16_bytes_mean": whole, "ratio": kept / whole}


def warning(figures: Mapping[str, Any], policy: str, threshold: float) -> str | None:
    """One sentence when the mean ROUGE-L is below ``threshold``."""
    mean, noise = figures["rouge_l"]["mean"], figures["noise"]
    if mean >= threshold:
        return None
    itself = f"; full KV has {noise['rouge_l']['mean']:.2f} with itself" if noise else ""
    return (
        f"summaries with {policy} and with full KV have a mean ROUGE-L of {mean:.2f}, below "
        f"audit.warn_below_rouge_l {threshold:g}{itself}: look at the worst of them, "
        "and give the policy a larger budget"
    )


def in_words(figures: Mapping[str, Any]) -> str:
    """The main figures, in a line."""
    found, rouge, noise = figures["documents"], figures["rouge_l"], figures["noise"]
    parts = [
        f"{found[COMPARED]} of {found['chosen']} compared",
        f"ROUGE-L mean {rouge['mean']:.3f}, median {rouge['median']:.3f}, min {rouge['min']:.3f}",
        f"{figures['equal_ratio']:.0%} equal",
    ]
    if noise:
        parts.append(
            f"full KV with itself mean {noise['rouge_l']['mean']:.3f}, "
            f"{noise['equal_ratio']:.0%} equal ({show_count(noise['documents'], 'document')})"
        )
    return "; ".join(parts)


def not_run(reason: str) -> dict[str, Any]:
    """The report's section of an audit that is not there."""
    return {"outcome": "not_run", "reason": reason, "warning": None}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
