"""Hands documents to engines: pull-based, longest first, and none lost when an engine dies.

What is in flight on an engine that dies is suspect, guilty or not. Suspects run alone, so that
the next death names its cause: a document that kills its engine twice alone becomes an error row.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from arkv_sglang.batch import rows
from arkv_sglang.batch.config import StrategyConfig
from arkv_sglang.batch.lane import Lane, Work
from arkv_sglang.batch.split import CannotSplit
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import Step, Task, task_of
from arkv_sglang.batch.types import (
    INVALID,
    TOO_LONG,
    Chunk,
    Engine,
    EngineInfo,
    EngineLost,
    PromptBuilder,
    Result,
    Row,
    RunFailed,
    Source,
    describe,
)
from arkv_sglang.batch.waiting import Waiting

MAX_LONE_DEATHS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an engine holds at once, and how much waits in the driver."""

    max_new_tokens: int
    window_docs: int = 32
    window_tokens: int | None = None
    lookahead_docs: int = 512
    request_timeout_s: float = 3600


class Scheduler:
    """Runs every document of ``source`` once and emits exactly one row for each."""

    def __init__(
        self,
        engines: list[Engine],
        source: Source,
        prompts: PromptBuilder,
        emit: Callable[[Row], None],
        limits: Limits,
        strategy: Strategy | None = None,
        emit_chunk: Callable[[Chunk], None] = lambda chunk: None,
    ) -> None:
        """Without a ``strategy`` no document is split."""
        self.lanes = [Lane(engine) for engine in engines]
        self.read_all = False
        self._source = source
        self._prompts = prompts
        self._emit = emit
        self._limits = limits
        self._strategy = strategy or Strategy(StrategyConfig(), prompts)
        self._emit_chunk = emit_chunk
        self._open: set[Task] = set()
        self._waiting = Waiting()
        self._cutting: set[Task] = set()
        self._cut_one = asyncio.Lock()
        self._suspects: deque[Work] = deque()
        self._primed = False
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Return when every document has its row. Raises RunFailed if no engine ever started."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._feed())
            for lane in self.lanes:
                self._group.create_task(self._drive(lane))
        if self._stranded() and not self.has_started:
            raise RunFailed(f"no engine started: {self._why_gone()}")
        self._give_up_the_rest()

    @property
    def has_started(self) -> bool:
        """Whether any engine ever came up."""
        return any(lane.info is not None for lane in self.lanes)

    @property
    def num_open(self) -> int:
        """Documents that have been read and have no row yet."""
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for an engine, and documents that wait to be cut."""
        return len(self._waiting) + len(self._suspects) + len(self._cutting)

    @property
    def num_in_flight(self) -> int:
        return sum(len(lane.in_flight) for lane in self.lanes)

    @property
    def tokens_left(self) -> int:
        """Prompt tokens of what has been read and has no row yet."""
        waiting = itertools.chain(self._waiting, self._suspects)
        return (
            sum(work.request.prompt_tokens for work in waiting)
            + sum(lane.in_flight_tokens for lane in self.lanes)
            + sum(task.later_tokens for task in self._open)
        )

    # Reading

    async def _feed(self) -> None:
        while not self._stranded():
            item = await asyncio.to_thread(self._read_one)
            async with self._changed:
                if item is None:
                    self.read_all = True
                elif isinstance(item, Row):
                    self._emit(item)
                else:
                    self._open.add(item)
                    self._push(item, item.advance())
                self._primed |= self.read_all or self._is_full()
                self._changed.notify_all()
                if self.read_all:
                    return
                await self._changed.wait_for(lambda: not self._is_full() or self._stranded())

    def _read_one(self) -> Task | Row | None:
        document = next(self._source, None)
        return None if document is None else task_of(document, self._prompts)

    def _push(self, task: Task, steps: Iterable[Step]) -> None:
        for step in steps:
            self._waiting.push(Work(task, step))

    def _is_full(self) -> bool:
        return len(self._waiting) + len(self._cutting) >= self._limits.lookahead_docs

    # Engines

    async def _drive(self, lane: Lane) -> None:
        while not self._finished() and await self._bring_up(lane):
            async with asyncio.TaskGroup() as group:
                while (work := await self._next(lane)) is not None:
                    group.create_task(self._run_one(lane, work))

    async def _bring_up(self, lane: Lane) -> bool:
        starting = asyncio.ensure_future(lane.engine.start())
        finished = asyncio.ensure_future(self._until_finished())
        try:
            await asyncio.wait((starting, finished), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            lane.info = starting.result()
        except Exception as error:
            lane.gone = describe(error)
        finally:
            starting.cancel()
            finished.cancel()
        lane.up = lane.gone is None
        if lane.up and lane.ready_at is None:
            lane.ready_at = time.monotonic()
        await self._notify()
        return lane.up

    async def _until_finished(self) -> None:
        async with self._changed:
            await self._changed.wait_for(self._finished)

    async def _next(self, lane: Lane) -> Work | None:
        async with self._changed:
            while lane.up and not self._finished():
                if (work := self._pick(lane)) is not None:
                    lane.in_flight.append(work)
                    self._changed.notify_all()
                    return work
                if not self._finished():
                    await self._changed.wait()
        return None

    def _pick(self, lane: Lane) -> Work | None:
        if any(work.suspect for work in lane.in_flight):
            return None
        if self._suspects and not lane.in_flight:
            return self._suspects.popleft()
        self._divert_too_long(lane)
        if self._primed and self._waiting and self._has_room(lane):
            return self._waiting.pop()
        return None

    def _divert_too_long(self, lane: Lane) -> None:
        """What comes first fits, or nothing waits: what does not is cut, or has its row."""
        assert lane.info is not None
        while (work := self._waiting.first) is not None:
            task, tokens = work.task, work.request.prompt_tokens
            new_tokens = work.request.sampling.get("max_new_tokens", self._limits.max_new_tokens)
            limit = self._max_prompt_tokens(task, lane.info, new_tokens)
            if tokens <= limit:
                return
            self._waiting.pop()
            self._changed.notify_all()
            if task.is_whole and self._strategy.splits(task.document):
                self._split(task, new_tokens)
            else:
                error = rows.too_long(tokens, limit, new_tokens, lane.info)
                self._end(task, task.failed(error, work.step, TOO_LONG))

    def _max_prompt_tokens(self, task: Task, info: EngineInfo, new_tokens: int) -> int:
        limit = info.max_prompt_tokens(new_tokens)
        return self._strategy.max_prompt_tokens(task.document, limit)

    # Documents in several requests

    def _split(self, whole: Task, new_tokens: int) -> None:
        infos = [lane.info for lane in self.lanes if lane.info and lane.gone is None]
        limit = min(self._max_prompt_tokens(whole, info, new_tokens) for info in infos)
        task = self._strategy.split(whole, limit, new_tokens)
        self._open.remove(whole)
        self._open.add(task)
        self._cutting.add(task)
        self._group.create_task(self._cut(task))

    async def _cut(self, task: Task) -> None:
        # One after the other: all would take the processor from what is read and committed.
        async with self._cut_one:
            if not self._stranded():
                await self._advance(task)
        self._cutting.remove(task)
        await self._notify()

    async def _advance(self, task: Task) -> None:
        """Hand out what comes next of a document, or emit its row."""
        try:
            if task.is_whole:
                steps = task.advance()
            else:
                # It takes a while, and its engine has nothing to wait for.
                await self._notify()
                steps = await asyncio.to_thread(task.advance)
        except CannotSplit as error:
            self._end(task, task.failed(str(error), status=TOO_LONG))
        except Exception as error:
            self._end(task, task.failed(rows.unmade(error), status=INVALID))
        else:
            self._push(task, steps)
            if not steps:
                self._end(task, task.answered())

    def _end(self, task: Task, row: Row) -> None:
        """Emit a document's row. What else of it is on its way is of no use any more."""
        task.ended = True
        self._open.remove(task)
        if not task.is_whole:
            self._waiting.drop(task)
            self._suspects = deque(work for work in self._suspects if work.task is not task)
        self._emit(row)

    def _has_room(self, lane: Lane) -> bool:
        if not lane.in_flight:
            return True
        first, limits = self._waiting.first, self._limits
        assert first is not None
        tokens = lane.in_flight_tokens + first.request.prompt_tokens
        if limits.window_tokens and tokens > limits.window_tokens:
            return False
        return len(lane.in_flight) < min(limits.window_docs, self._fair_share())

    def _fair_share(self) -> int:
        """So that the first engine to be ready does not take what is left from the others."""
        if not self.read_all:
            return self._limits.window_docs
        alive = sum(lane.gone is None for lane in self.lanes)
        return math.ceil((self.num_waiting + self.num_in_flight) / alive)

    async def _run_one(self, lane: Lane, work: Work) -> None:
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                result = await lane.engine.generate(work.request)
        except EngineLost as error:
            self._lose(lane, work, str(error))
        except TimeoutError:
            self._fail(lane, work, f"no answer within {self._limits.request_timeout_s:g} s")
        except Exception as error:
            # Not RequestFailed alone: whatever it is, it costs one document and not the run.
            self._fail(lane, work, describe(error))
        else:
            self._take(lane, work, result)
        lane.last_done_at = time.monotonic()
        lane.in_flight.remove(work)
        if work.task.has_answers and not work.task.ended:
            await self._advance(work.task)
        await self._notify()

    def _take(self, lane: Lane, work: Work, result: Result) -> None:
        lane.docs += 1
        lane.prompt_tokens += result.prompt_tokens
        lane.tokens += result.prompt_tokens + result.output_tokens
        task = work.task
        if task.ended:
            return
        answer = (work.step, result, lane.engine.name)
        task.take(*answer)
        if not task.is_whole:
            self._emit_chunk(task.chunk(*answer))

    def _fail(self, lane: Lane, work: Work, error: str) -> None:
        task, name = work.task, lane.engine.name
        if not task.ended:
            self._end(task, task.failed(error, work.step, engine=name))

    def _lose(self, lane: Lane, work: Work, reason: str) -> None:
        lane.deaths += lane.up
        lane.up = False
        task = work.task
        task.death_log.append(reason)
        task.lone_deaths += work.suspect
        work.suspect = True
        if task.lone_deaths >= MAX_LONE_DEATHS:
            self._fail(
                lane, work, f"its engine died {task.lone_deaths} times running it alone: {reason}"
            )
        elif not task.ended:
            self._suspects.append(work)

    # Ends

    def _finished(self) -> bool:
        return self.read_all and not self._open and not self.num_in_flight

    def _stranded(self) -> bool:
        return all(lane.gone is not None for lane in self.lanes)

    def _why_gone(self) -> str:
        return next((lane.gone for lane in self.lanes if lane.gone), "no engine is configured")

    def _give_up_the_rest(self) -> None:
        error = f"no engine was left to run it: {self._why_gone()}"
        self._waiting, self._suspects = Waiting(), deque()
        for task in list(self._open):
            self._end(task, task.failed(error))
        for item in self._unread():
            self._emit(item if isinstance(item, Row) else item.failed(error))

    def _unread(self) -> Iterator[Task | Row]:
        while not self.read_all and (item := self._read_one()) is not None:
            yield item

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
