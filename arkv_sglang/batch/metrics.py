"""Mirrors a run into the counters and gauges of a metrics library, by documented names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from arkv_sglang.batch.metric_names import (
    CACHED_TOKENS,
    DOCUMENTS,
    KV_BYTES,
    METRICS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    RUNNING_REQUESTS,
    Metric,
)
from arkv_sglang.batch.types import OK, Row

TIERS = ("original", "quantized")


class Counter(Protocol):
    def inc(self, value: float, tags: dict[str, str]) -> None:
        """Grow by ``value``, which must be more than 0."""


class Gauge(Protocol):
    def set(self, value: float, tags: dict[str, str]) -> None: ...


class Mirror(Protocol):
    """What a run tells as it goes."""

    def row(self, row: Row) -> None:
        """A document has its row."""

    def sample(self, engine: str, sample: Mapping[str, float]) -> None:
        """An engine's telemetry now; empty when it is not up."""


class NoMirror:
    def row(self, row: Row) -> None: ...

    def sample(self, engine: str, sample: Mapping[str, float]) -> None: ...


class MetricsMirror:
    """Into a library whose instruments are made as Ray's are, ``(name, description, tag_keys)``."""

    def __init__(
        self,
        make_counter: Callable[[str, str, tuple[str, ...]], Counter],
        make_gauge: Callable[[str, str, tuple[str, ...]], Gauge],
    ) -> None:
        self._counters = {m: make_counter(*_of(m)) for m in METRICS if m.is_counter}
        self._gauges = {m: make_gauge(*_of(m)) for m in METRICS if not m.is_counter}

    def row(self, row: Row) -> None:
        engine = row.engine or ""
        self._counters[DOCUMENTS].inc(1, {"engine": engine, "status": row.status})
        if row.status != OK:
            return
        for metric, count in (
            (PROMPT_TOKENS, row.prompt_tokens),
            (CACHED_TOKENS, row.cached_tokens),
            (OUTPUT_TOKENS, row.output_tokens),
        ):
            if count:
                self._counters[metric].inc(count, {"engine": engine})

    def sample(self, engine: str, sample: Mapping[str, float]) -> None:
        """A gauge keeps its last value, so of an engine that is not up they are set to 0."""
        running = sample.get("running_requests", 0)
        self._gauges[RUNNING_REQUESTS].set(running, {"engine": engine})
        for tier in TIERS:
            used = sample.get(f"kv_{tier}_bytes", 0)
            self._gauges[KV_BYTES].set(used, {"engine": engine, "tier": tier})


def _of(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    return metric.name, f"{metric.description} [{metric.unit}]", metric.labels
