"""One engine as the scheduler sees it, and the work that it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from arkv_sglang.batch.task import Step, Task
from arkv_sglang.batch.types import Engine, EngineInfo, Request


@dataclass(slots=True)
class Work:
    """A step of a task on its way. ``suspect``: an engine died that was running it."""

    task: Task
    step: Step
    suspect: bool = False

    @property
    def request(self) -> Request:
        return self.step.request


@dataclass(slots=True)
class Lane:
    """Times are ``time.monotonic()`` seconds; tokens and ``docs`` are those of answers."""

    engine: Engine
    info: EngineInfo | None = None
    up: bool = False
    gone: str | None = None
    in_flight: list[Work] = field(default_factory=list)
    deaths: int = 0
    docs: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    ready_at: float | None = None
    last_done_at: float | None = None

    @property
    def in_flight_tokens(self) -> int:
        return sum(work.request.prompt_tokens for work in self.in_flight)
