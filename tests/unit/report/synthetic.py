"""Runs that never were: corpora of log-normal lengths, engines that fill up, die and come back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from arkv_sglang.batch.commit import ROW_SCHEMA

GIB = 1 << 30
LAYERS, UNIT_BYTES = 36, 2048
LIMIT = 65_536
CONFIG = {
    "engine": {"model_path": "some/model", "kv_policy": "arkv"},
    "run": {"sample_period_s": 1.0},
}
KEYS = ("prompt", "cached", "output")
TELEMETRY = {"weights_bytes": 16.4 * GIB, "kv_pool_bytes": 48.0 * GIB, "rss_bytes": 6.0 * GIB}


@dataclass
class Run:
    """What build_report takes. ``down``: engine number -> when it was not up, in seconds; to the
    end of the run if the second is None."""

    num_documents: int
    num_engines: int = 3
    policy: str = "arkv"
    down: dict[int, tuple[float, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.num_documents)
        self.lengths = np.exp(self.rng.normal(9, 1, self.num_documents)).astype(int) + 20
        self.free_at = [[30.0 + n] * 8 for n in range(self.num_engines)]
        self.done: list[tuple[float, float, int, dict[str, Any]]] = []
        rows = [self._row(n, int(length)) for n, length in enumerate(-np.sort(-self.lengths))]
        columns = [column for column in ROW_SCHEMA if column.name != "summary"]
        self.rows = pa.Table.from_pylist(rows, schema=pa.schema(columns))
        self.end_s = max((end for _, end, _, _ in self.done), default=40.0)
        self.engines = [self._engine(n) for n in range(self.num_engines)]
        self.samples = {engine["name"]: engine["samples"] for engine in self.engines}
        self.header = {"id": "r", "started_at": "2026-01-01T00:00:00+00:00", "wall_s": self.end_s}

    def _row(self, number: int, length: int) -> dict[str, Any]:
        row: dict[str, Any] = {"doc_id": f"contracts/{number:05}.pdf", "status": "invalid"}
        if number % 97 == 96:
            return row | {"error": f"text is not UTF-8 (byte {number})"}
        if length > LIMIT:
            error = f"the prompt has {length} tokens and at most {LIMIT} fit beside 512 new ones"
            return row | {"status": "too_long", "error": error, "prompt_tokens": length}
        engine = min(self._up(), key=lambda n: min(self.free_at[n]))
        row |= {"engine": f"engine-{engine}", "prompt_tokens": length}
        if number % 1999 == 1998:
            return row | {"status": "error", "error": "its engine died 2 times running it alone"}
        start = min(self.free_at[engine])
        ttft_s = 0.1 + length / 2000
        end = start + ttft_s + 5
        self.free_at[engine].remove(start)
        self.free_at[engine].append(end)
        row |= {"status": "ok", "output_tokens": 300, "cached_tokens": length // (2 + number % 7)}
        row |= {"finish_reason": "stop", "ttft_s": ttft_s, "e2e_s": end - start}
        if self.policy != "none":
            kept = (36 * LAYERS, (length + 264) * LAYERS // 2)
            evicted = (length + 300) * LAYERS - sum(kept)
            row |= dict(zip(("kv_rows_original", "kv_rows_quantized"), kept, strict=True))
            row["kv_rows_evicted"] = evicted
        self.done.append((start, end, engine, row))
        return row

    def _up(self) -> list[int]:
        return [
            n
            for n in range(self.num_engines)
            if n not in self.down or min(self.free_at[n]) < self.down[n][0]
        ]

    def _engine(self, number: int) -> dict[str, Any]:
        own = [(start, end, row) for start, end, engine, row in self.done if engine == number]
        start, stop = self.down.get(number, (np.inf, None))
        stop = np.inf if stop is None else stop
        times = np.arange(30.0 + number, self.end_s + 1, max(1.0, self.end_s / 400))
        samples = [self._sample(t, own) for t in times if not start < t < stop]
        peaks: dict[str, float] = {}
        for sample in samples:
            peaks |= {key: max(value, peaks.get(key, value)) for key, value in sample.items()}
        return {
            "name": f"engine-{number}",
            "info": {"device": "cuda", "capacity_tokens": 349_525, "context_tokens": 131_072},
            "served": {
                f"{key}_tokens": sum(row[f"{key}_tokens"] for *_, row in own) for key in KEYS
            },
            "deaths": int(number in self.down),
            "gone": f"engine-{number} could not start" if stop == np.inf > start else None,
            "ready_s": 30.0 + number,
            "done_s": max((end for _, end, _ in own), default=None),
            "peaks": peaks,
            "samples": samples,
        }

    def _sample(self, t: float, own: list[tuple[float, float, dict[str, Any]]]) -> dict[str, float]:
        running = [row["prompt_tokens"] for start, end, row in own if start <= t < end]
        done = [row for _, end, row in own if end <= t]
        sample = TELEMETRY | {"t_s": float(t), "running_requests": float(len(running))}
        sample["device_used_bytes"] = 68.0 * GIB
        sample["done_requests"] = len(done)
        for what in KEYS:
            sample[f"done_{what}_tokens"] = sum(row[f"{what}_tokens"] for row in done)
        original = min(sum(running) * LAYERS * 2.0 * UNIT_BYTES, 40.0 * GIB)
        quantized = 0.0 if self.policy == "none" else original / 5
        if self.policy != "none":
            sample |= {"arkv_arena_bytes": 48.0 * GIB, "arkv_overhead_bytes": 1.3 * GIB}
            sample["arkv_rows_evicted_total"] = sum(row["kv_rows_evicted"] for row in done)
        tiers = {"kv_original_bytes": original, "kv_quantized_bytes": quantized}
        return sample | tiers | {"kv_bytes": original + quantized}
