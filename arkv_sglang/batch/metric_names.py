"""Every metric that the job registers with Ray, by the name that dashboards query.

Ray exports them as ``ray_<name>``, with labels of its own beside these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """``unit`` is of one step of the value. A name that ends in ``_total`` is a counter, every
    other one a gauge."""

    name: str
    description: str
    unit: str
    labels: tuple[str, ...]

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


DOCUMENTS = Metric(
    "arkv_job_documents_total",
    "Documents that have their row: by status, and by engine ('' if none ran it)",
    "documents",
    ("engine", "status"),
)
PROMPT_TOKENS = Metric(
    "arkv_job_prompt_tokens_total",
    "Prompt tokens of answered documents, cached ones included",
    "tokens",
    ("engine",),
)
CACHED_TOKENS = Metric(
    "arkv_job_cached_tokens_total",
    "Prompt tokens of answered documents that the prefix cache had",
    "tokens",
    ("engine",),
)
OUTPUT_TOKENS = Metric(
    "arkv_job_output_tokens_total",
    "Tokens of answers",
    "tokens",
    ("engine",),
)
RUNNING_REQUESTS = Metric(
    "arkv_job_running_requests",
    "Requests that an engine runs now",
    "requests",
    ("engine",),
)
KV_BYTES = Metric(
    "arkv_job_kv_bytes",
    "KV memory in use now: tier original is bf16, quantized is fp8",
    "bytes",
    ("engine", "tier"),
)
METRICS = (DOCUMENTS, PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, RUNNING_REQUESTS, KV_BYTES)
