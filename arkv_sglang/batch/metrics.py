"""Mirrors a run into the counters and gauges of a metrics library, by documented names."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from arkv_sglang.batch.metric_names import JOB_METRICS, Metric, engine_gauge
from arkv_sglang.batch.types import OK, Row

_JOB = {metric.name: metric for metric in JOB_METRICS}


class CounterLike(Protocol):
    def inc(self, value: float, tags: dict[str, str]) -> None:
        """Grow by ``value``, which must be more than 0."""


class GaugeLike(Protocol):
    def set(self, value: float, tags: dict[str, str]) -> None: ...


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run is doing now; ``deaths`` so far. Both mappings by engine."""

    waiting: int
    engines_up: int
    in_flight: Mapping[str, int]
    deaths: Mapping[str, int]


class Mirror(Protocol):
    """What a run tells as it goes."""

    def row(self, row: Row) -> None:
        """A document has its row."""

    def state(self, state: RunState) -> None:
        """Now and then."""

    def sample(self, engine: str, figures: Mapping[str, float]) -> None:
        """What an engine that is up says of itself."""


class NoMirror:
    def row(self, row: Row) -> None: ...

    def state(self, state: RunState) -> None: ...

    def sample(self, engine: str, figures: Mapping[str, float]) -> None: ...


class MetricsMirror:
    """Into a library whose instruments are made as Ray's are, ``(name, description, tag_keys)``.

    Of an engine that is down no gauge is set any more: Ray forgets it after 20 seconds.
    """

    def __init__(
        self,
        run_id: str,
        make_counter: Callable[[str, str, tuple[str, ...]], CounterLike],
        make_gauge: Callable[[str, str, tuple[str, ...]], GaugeLike],
    ) -> None:
        self._run_id = run_id
        self._make = {"counter": make_counter, "gauge": make_gauge}
        self._made: dict[str, Any] = {}
        self._deaths: Counts[str] = Counts()

    def row(self, row: Row) -> None:
        self._count("arkv_job_documents_done_total", 1, status=row.status)
        if row.status != OK or row.engine is None:
            return
        for what in ("prompt_tokens", "cached_tokens", "output_tokens"):
            self._count(f"arkv_job_{what}_total", getattr(row, what), engine=row.engine)

    def state(self, state: RunState) -> None:
        self._set(_JOB["arkv_job_documents_waiting"], state.waiting)
        self._set(_JOB["arkv_job_engines_up"], state.engines_up)
        for engine, count in state.in_flight.items():
            self._set(_JOB["arkv_job_documents_in_flight"], count, engine=engine)
        for engine, deaths in state.deaths.items():
            new = deaths - self._deaths[engine]
            self._count("arkv_job_engine_deaths_total", new, engine=engine)
            self._deaths[engine] = deaths

    def sample(self, engine: str, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            self._set(engine_gauge(figure), value, engine=engine)

    def _count(self, name: str, by: int | None, **labels: str) -> None:
        if by:
            self._instrument(_JOB[name]).inc(by, {"run": self._run_id, **labels})

    def _set(self, metric: Metric, value: float, **labels: str) -> None:
        self._instrument(metric).set(value, {"run": self._run_id, **labels})

    def _instrument(self, metric: Metric) -> Any:
        if metric.name not in self._made:
            make = self._make[metric.kind]
            self._made[metric.name] = make(metric.name, metric.description, metric.labels)
        return self._made[metric.name]
