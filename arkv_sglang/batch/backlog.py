"""Documents that have been read and have no row yet, and what of them waits for an engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from arkv_sglang.batch import rows
from arkv_sglang.batch.lane import Lane, Work
from arkv_sglang.batch.split import CannotSplit
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import Step, Task
from arkv_sglang.batch.types import INVALID, TOO_LONG, EngineInfo, Row
from arkv_sglang.batch.waiting import Waiting


class Backlog:
    """``waiting`` has what may run beside other work, ``suspects`` what must run alone.
    ``changed`` is awaited after what may give an engine something to do."""

    def __init__(
        self,
        waiting: Waiting,
        strategy: Strategy | None,
        emit: Callable[[Row], None],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Without a ``strategy`` no document is split."""
        self.waiting = waiting
        self.suspects: deque[Work] = deque()
        self._strategy = strategy
        self._emit = emit
        self._changed = changed
        self._open: set[Task] = set()
        self._cutting: set[Task] = set()
        self._cut_one = asyncio.Lock()

    def add(self, task: Task) -> None:
        """One that has just been read."""
        self._open.add(task)
        self._push(task, task.advance())

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for an engine, and documents that wait to be cut."""
        return self.num_ahead + len(self.suspects)

    @property
    def num_ahead(self) -> int:
        """The same, without those that an engine had before."""
        return len(self.waiting) + len(self._cutting)

    @property
    def prompt_tokens(self) -> int:
        """Of all that is to come, what is in flight aside."""
        return (
            self.waiting.prompt_tokens
            + sum(work.request.prompt_tokens for work in self.suspects)
            + sum(task.later_tokens for task in self._open)
        )

    @property
    def new_tokens(self) -> int:
        """What it takes to run what waits; of what is cut, as if it were whole."""
        return self.waiting.new_tokens + sum(task.prompt_tokens for task in self._cutting)

    def fits(self, work: Work, info: EngineInfo) -> bool:
        return work.request.prompt_tokens <= self._limit(work, info)

    def divert(self, work: Work, lane: Lane, infos: Iterable[EngineInfo]) -> Task | None:
        """What does not fit the lane's engine has its row, or is returned for `cut`. ``infos``: of
        all engines that may get a piece."""
        assert lane.info is not None
        task, new_tokens = work.task, work.answer_tokens
        self.waiting.remove(work)
        if not (task.is_whole and self._strategy and self._strategy.splits(task.document)):
            tokens, limit = work.request.prompt_tokens, self._limit(work, lane.info)
            error = rows.too_long(tokens, limit, new_tokens, lane.info)
            self.end(task, task.failed(error, work.step, TOO_LONG))
            return None
        limit = min(self._limit(work, info) for info in infos)
        pieces = self._strategy.split(task, limit, new_tokens)
        self._open.remove(task)
        self._open.add(pieces)
        self._cutting.add(pieces)
        return pieces

    async def cut(self, task: Task, is_of_use: Callable[[], bool]) -> None:
        # One after the other: all would take the processor from what is read and committed.
        async with self._cut_one:
            if is_of_use():
                await self.advance(task)
        self._cutting.remove(task)
        await self._changed()

    async def advance(self, task: Task) -> None:
        """Hand out what comes next of a document, or emit its row."""
        try:
            if task.is_whole:
                steps = task.advance()
            else:
                # It takes a while, and its engine has nothing to wait for.
                await self._changed()
                steps = await asyncio.to_thread(task.advance)
        except CannotSplit as error:
            self.end(task, task.failed(str(error), status=TOO_LONG))
        except Exception as error:
            self.end(task, task.failed(rows.unmade(error), status=INVALID))
        else:
            self._push(task, steps)
            if not steps:
                self.end(task, task.answered())

    def end(self, task: Task, row: Row) -> None:
        """Emit a document's row. What else of it is on its way is of no use any more."""
        task.ended = True
        self._open.remove(task)
        if not task.is_whole:
            self.waiting.drop(task)
            self.suspects = deque(work for work in self.suspects if work.task is not task)
        self._emit(row)

    def _push(self, task: Task, steps: Iterable[Step]) -> None:
        for step in steps:
            self.waiting.push(Work(task, step))

    def _limit(self, work: Work, info: EngineInfo) -> int:
        """Prompt tokens of one request."""
        limit, strategy = info.max_prompt_tokens(work.answer_tokens), self._strategy
        return strategy.max_prompt_tokens(work.task.document, limit) if strategy else limit
