"""One engine as the scheduler sees it, and the work that it is given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from arkv_sglang.batch.tally import Served
from arkv_sglang.batch.task import Step, Task
from arkv_sglang.batch.types import Engine, EngineInfo, Request


@dataclass(slots=True, eq=False)
class Work:
    """A step of a task on its way. ``suspect``: an engine died that was running it. ``group`` and
    ``answer_tokens``, the most that its answer may have, are known once it has waited."""

    task: Task
    step: Step
    suspect: bool = False
    answer_tokens: int = 0
    group: Group | None = None

    @property
    def request(self) -> Request:
        return self.step.request

    @property
    def request_in_group(self) -> Request:
        return replace(self.request, prefix=self.group.number if self.group else None)

    @property
    def own_tokens(self) -> int:
        """Of prompt and answer, without the prefix that the group shares."""
        shared = self.group.prefix_tokens if self.group else 0
        return self.request.prompt_tokens - shared + self.answer_tokens


@dataclass(slots=True, eq=False)
class Group:
    """Work whose prompts begin with the same ``prefix_tokens`` tokens; of one alone, its whole
    prompt. The first ``common_tokens`` of them begin so many prompts that they tell nothing.

    ``owners``: the lanes whose engines have the prefix. ``waiting``: the longest is the last.
    ``turn``: of work that goes before all that has none."""

    number: int
    prefix_tokens: int
    common_tokens: int = 0
    turn: int | None = None
    owners: list[Lane] = field(default_factory=list)
    waiting: list[Work] = field(default_factory=list)
    waiting_tokens: int = 0

    @property
    def rank(self) -> tuple[bool, int]:
        """The least goes first."""
        return (True, -self.new_tokens) if self.turn is None else (False, self.turn)

    @property
    def new_tokens(self) -> int:
        """What it takes to run all that waits: the prefix, where no engine has it, and of each the
        rest of its prompt, and its answer."""
        if not self.waiting:
            return 0
        shared = len(self.waiting) - (0 if self.owners else 1)
        return self.waiting_tokens - shared * self.prefix_tokens


@dataclass(slots=True, eq=False)
class Lane:
    """Times are ``time.monotonic()`` seconds.
    ``deaths_in_a_row``: since it last answered, or a document was found to be their cause."""

    engine: Engine
    info: EngineInfo | None = None
    up: bool = False
    gone: str | None = None
    in_flight: list[Work] = field(default_factory=list)
    deaths: int = 0
    deaths_in_a_row: int = 0
    last_death: str = ""
    served: Served = field(default_factory=Served)
    ready_at: float | None = None
    last_done_at: float | None = None

    @property
    def in_flight_tokens(self) -> int:
        return held_tokens(self.in_flight)

    def die(self, reason: str) -> None:
        """It is down until it has started again. One death, however many requests tell of it."""
        if self.up:
            self.up = False
            self.deaths += 1
            self.deaths_in_a_row += 1
            self.last_death = reason


def held_tokens(works: Iterable[Work]) -> int:
    """What an engine holds at the end of all of them: prompts and answers, and a prefix that some
    of them share once."""
    works = list(works)
    groups = {work.group for work in works}
    shared = sum(group.prefix_tokens for group in groups if group)
    return shared + sum(work.own_tokens for work in works)
