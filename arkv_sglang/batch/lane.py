"""One engine as the scheduler sees it, and the work that it is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from arkv_sglang.batch.types import Engine, EngineInfo, Request


@dataclass(slots=True)
class Work:
    """A request on its way. ``suspect``: an engine died that was running it. ``victims``: the
    engines that died when it ran alone."""

    request: Request
    suspect: bool = False
    victims: list[Lane] = field(default_factory=list)
    death_log: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Lane:
    """Times are ``time.monotonic()`` seconds. ``deaths_in_a_row``: since it last answered, or a
    document was found to be their cause."""

    engine: Engine
    info: EngineInfo | None = None
    up: bool = False
    gone: str | None = None
    in_flight: list[Work] = field(default_factory=list)
    deaths: int = 0
    deaths_in_a_row: int = 0
    last_death: str = ""
    docs: int = 0
    tokens: int = 0
    ready_at: float | None = None
    last_done_at: float | None = None

    @property
    def in_flight_tokens(self) -> int:
        return sum(work.request.prompt_tokens for work in self.in_flight)

    def die(self, reason: str) -> None:
        """It is down until it has started again. One death, however many requests tell of it."""
        if self.up:
            self.up = False
            self.deaths += 1
            self.deaths_in_a_row += 1
            self.last_death = reason
