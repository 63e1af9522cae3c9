"""Counts of a run as its rows come in, for progress and telemetry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from arkv_sglang.batch.types import OK, Row


@dataclass(slots=True)
class Count:
    """Of the rows of one engine, or of all. Tokens are those of answered documents."""

    by_status: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, row: Row) -> None:
        self.by_status[row.status] += 1
        if row.status == OK:
            self.prompt_tokens += row.prompt_tokens or 0
            self.cached_tokens += row.cached_tokens or 0
            self.output_tokens += row.output_tokens or 0

    @property
    def documents(self) -> int:
        return self.by_status.total()

    @property
    def failed(self) -> int:
        return self.documents - self.by_status[OK]

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def cache_hit_ratio(self) -> float | None:
        """Share of the prompt tokens that the prefix cache had; None before the first answer."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def as_sample(self) -> dict[str, float]:
        return {
            "done_documents": self.documents,
            "done_failed_documents": self.failed,
            "done_prompt_tokens": self.prompt_tokens,
            "done_cached_tokens": self.cached_tokens,
            "done_output_tokens": self.output_tokens,
        }


class Tally:
    """Rows of the run so far, in all and by the engine that ran them."""

    def __init__(self) -> None:
        self.all = Count()
        self._by_engine: dict[str, Count] = {}

    def add(self, row: Row) -> None:
        self.all.add(row)
        if row.engine is not None:
            self.engine(row.engine).add(row)

    def engine(self, name: str) -> Count:
        return self._by_engine.setdefault(name, Count())
