"""Counts of a run as it goes, for progress, telemetry and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from arkv_sglang.batch.types import OK, Result, Row


@dataclass(slots=True)
class Tally:
    """Documents that have their row."""

    by_status: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.by_status[row.status] += 1

    @property
    def documents(self) -> int:
        return self.by_status.total()

    @property
    def failed(self) -> int:
        return self.documents - self.by_status[OK]


@dataclass(slots=True)
class Served:
    """What engines have answered: a document in several requests counts at each engine that had
    some of them, also when it failed in the end."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, result: Result) -> None:
        self.requests += 1
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.output_tokens += result.output_tokens

    def __add__(self, other: Served) -> Served:
        return Served(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cache_hit_ratio(self) -> float | None:
        """Share of the prompt tokens that the prefix cache had; None before the first answer."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def as_sample(self) -> dict[str, float]:
        return {f"done_{name}": count for name, count in asdict(self).items()}
