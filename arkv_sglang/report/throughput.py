"""How fast a run went from its beginning to its end, from what engines had done at each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_BINS = 60
REQUESTS_PER_BIN = 3


def throughput(
    samples: Mapping[str, Sequence[Mapping[str, Any]]], from_s: float, to_s: float
) -> dict[str, Any] | None:
    """Tokens per second of each engine, and cache hits of all, in equal bins of time.

    A request counts when it is answered. None where nothing was sampled.
    """
    known = {
        name: rows
        for name, series in samples.items()
        if (rows := [sample for sample in series if "done_prompt_tokens" in sample])
    }
    if not known or to_s <= from_s:
        return None
    requests = sum(series[-1]["done_requests"] for series in known.values())
    num_bins = max(1, min(MAX_BINS, int(requests) // REQUESTS_PER_BIN))
    edges = np.linspace(from_s, to_s, num_bins + 1)
    bin_s = (to_s - from_s) / num_bins
    prompt, cached, output = (
        {name: _growth(rows, f"done_{what}_tokens", edges) for name, rows in known.items()}
        for what in ("prompt", "cached", "output")
    )
    all_prompt, all_cached = sum(prompt.values()), sum(cached.values())
    return {
        "from_s": from_s,
        "bin_s": bin_s,
        "tokens_per_s": {name: ((prompt[name] + output[name]) / bin_s).tolist() for name in known},
        "cache_hit_ratio": [
            float(c / p) if p > 0 else None for c, p in zip(all_cached, all_prompt, strict=True)
        ],
    }


def _growth(samples: Sequence[Mapping[str, Any]], key: str, edges: Any) -> Any:
    """How much a count grew in each bin; what came after the last sample is in the last bin."""
    times = [sample["t_s"] for sample in samples]
    counts = [sample[key] for sample in samples]
    reached = np.interp(edges, times, counts, left=0)
    reached[-1] = counts[-1]
    return np.diff(reached)
