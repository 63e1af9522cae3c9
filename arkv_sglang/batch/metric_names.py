"""The job's metrics: names, units and labels, for the job that sets them and for the dashboard.

Ray exports each as ``ray_<name>``. It forgets a gauge that is not set again for 20 seconds, so
the job sets all of them every few seconds. A counter is absent until it has counted something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUN_LABELS = ("run",)
ENGINE_LABELS = ("run", "engine")
_UNITS = ("bytes", "tokens", "requests", "rows", "nodes", "views")


@dataclass(frozen=True, slots=True)
class Metric:
    """``labels`` are what every value of the metric carries; a document is never one."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    description: str
    labels: tuple[str, ...]

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return f"ray_{self.name}"


JOB_METRICS = (
    Metric(
        "arkv_job_documents_done_total",
        "counter",
        "documents",
        "documents that have their row, by its status; every status but ok is a failure",
        ("run", "status"),
    ),
    Metric(
        "arkv_job_documents_waiting",
        "gauge",
        "documents",
        "documents that were read and wait for an engine; of one in chunks each request",
        RUN_LABELS,
    ),
    Metric(
        "arkv_job_documents_in_flight",
        "gauge",
        "documents",
        "documents that an engine holds; of one in chunks each request",
        ENGINE_LABELS,
    ),
    Metric(
        "arkv_job_prompt_tokens_total",
        "counter",
        "tokens",
        "prompt tokens of answered requests",
        ENGINE_LABELS,
    ),
    Metric(
        "arkv_job_cached_tokens_total",
        "counter",
        "tokens",
        "prompt tokens of answered requests that were found in the prefix cache",
        ENGINE_LABELS,
    ),
    Metric(
        "arkv_job_output_tokens_total",
        "counter",
        "tokens",
        "tokens of answers",
        ENGINE_LABELS,
    ),
    Metric(
        "arkv_job_engines_up",
        "gauge",
        "engines",
        "engines that answer",
        RUN_LABELS,
    ),
    Metric(
        "arkv_job_engine_deaths_total",
        "counter",
        "deaths",
        "times that an engine died",
        ENGINE_LABELS,
    ),
)


def engine_gauge(figure: str) -> Metric:
    """The gauge that mirrors one figure of ``Engine.sample``. An ``arkv_*`` figure keeps the name
    under which SGLang's own server exports it."""
    name = figure if figure.startswith("arkv_") else f"arkv_engine_{figure}"
    unit = next((unit for unit in _UNITS if unit in figure.split("_")), "1")
    return Metric(name, "gauge", unit, figure.replace("_", " "), ENGINE_LABELS)
