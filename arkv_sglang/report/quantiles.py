"""Quantiles of columns that may hold nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Every percent, and the tail finer.
_SHARES = (*np.linspace(0, 0.99, 100), 0.995, 0.999, 1.0)


def quantile(values: pa.ChunkedArray, share: float) -> float | None:
    """Linear between neighbours; None without values."""
    result: float | None = pc.quantile(values, share)[0].as_py() if len(values) else None
    return result


def latency_curve(rows: pa.Table) -> list[dict[str, float]]:
    """First token and whole answer at every share of the answered documents."""
    done = rows.filter(pc.equal(rows["status"], "ok"))
    times = {name: _numbers(done[name]) for name in ("ttft_s", "e2e_s")}
    if not all(len(values) for values in times.values()):
        return []
    curves: dict[str, Any] = {name: np.quantile(v, _SHARES) for name, v in times.items()}
    return [
        {"share": float(share)} | {name: float(curve[n]) for name, curve in curves.items()}
        for n, share in enumerate(_SHARES)
    ]


def _numbers(values: pa.ChunkedArray) -> Any:
    return values.drop_null().to_numpy()
