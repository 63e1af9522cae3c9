"""Hands documents to engines: pull-based, longest first, and none lost when an engine dies.

What is in flight on an engine that dies is suspect, guilty or not. Suspects run alone, so that
the next death names its cause: a document that kills its engine twice alone becomes an error row.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from arkv_sglang.batch.backlog import Backlog
from arkv_sglang.batch.lane import Lane, Work, held_tokens
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import Task, task_of
from arkv_sglang.batch.types import (
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
FAIR_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an engine holds at once, how much waits in the driver, and how many deaths of
    engines a run bears."""

    max_new_tokens: int
    window_docs: int = 32
    window_tokens: int | None = None
    lookahead_docs: int = 512
    request_timeout_s: float = 3600
    max_restarts: int = 3
    min_engines: int = 1
    group_prefixes: bool = True


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
        self._emit_chunk = emit_chunk
        self._waiting = Waiting(limits.max_new_tokens, len(engines), limits.group_prefixes)
        self._backlog = Backlog(self._waiting, strategy, emit, self._notify)
        self._victims: defaultdict[Task, list[Lane]] = defaultdict(list)
        self._primed = False
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Return when every document has its row. Raises RunFailed when too few engines are left
        for that, once what the others were running is done."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._feed())
            for lane in self.lanes:
                self._group.create_task(self._drive(lane))
        if not self._finished():
            raise RunFailed(self._why_stranded())

    @property
    def has_started(self) -> bool:
        """Whether any engine ever came up."""
        return any(lane.info is not None for lane in self.lanes)

    @property
    def num_open(self) -> int:
        """Documents that have been read and have no row yet."""
        return self._backlog.num_open

    @property
    def num_waiting(self) -> int:
        """Requests that wait for an engine, and documents that wait to be cut."""
        return self._backlog.num_waiting

    @property
    def num_in_flight(self) -> int:
        return sum(len(lane.in_flight) for lane in self.lanes)

    @property
    def tokens_left(self) -> int:
        """Prompt tokens of what has been read and has no row yet."""
        in_flight = itertools.chain.from_iterable(lane.in_flight for lane in self.lanes)
        return self._backlog.prompt_tokens + sum(work.request.prompt_tokens for work in in_flight)

    async def lose_idle(self, lane: Lane, reason: str) -> None:
        """An engine died that was running nothing, so that no request tells of it."""
        if not lane.in_flight:
            self._die(lane, reason)
            await self._notify()

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
                    self._backlog.add(item)
                self._primed |= self.read_all or self._is_full()
                self._changed.notify_all()
                if self.read_all:
                    return
                await self._changed.wait_for(lambda: not self._is_full() or self._stranded())

    def _read_one(self) -> Task | Row | None:
        document = next(self._source, None)
        return None if document is None else task_of(document, self._prompts)

    def _is_full(self) -> bool:
        return self._backlog.num_ahead >= self._limits.lookahead_docs

    # Engines

    async def _drive(self, lane: Lane) -> None:
        while not self._over() and await self._bring_up(lane):
            async with asyncio.TaskGroup() as group:
                while (work := await self._next(lane)) is not None:
                    group.create_task(self._run_one(lane, work))

    async def _bring_up(self, lane: Lane) -> bool:
        starting = asyncio.ensure_future(self._start(lane))
        over = asyncio.ensure_future(self._until_over())
        try:
            await asyncio.wait((starting, over), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            lane.info = starting.result()
        except Exception as error:
            lane.gone = describe(error)
        finally:
            starting.cancel()
            over.cancel()
        lane.up = lane.gone is None
        if lane.up and lane.ready_at is None:
            lane.ready_at = time.monotonic()
        await self._notify()
        return lane.up

    async def _start(self, lane: Lane) -> EngineInfo:
        if lane.deaths_in_a_row > self._limits.max_restarts:
            raise EngineLost(
                f"{lane.last_death} (death {lane.deaths_in_a_row} without an answer in between, "
                f"and engines.max_restarts is {self._limits.max_restarts})"
            )
        return await lane.engine.start()

    async def _until_over(self) -> None:
        async with self._changed:
            await self._changed.wait_for(self._over)

    async def _next(self, lane: Lane) -> Work | None:
        async with self._changed:
            while lane.up and not self._over():
                if (work := self._pick(lane)) is not None:
                    lane.in_flight.append(work)
                    self._changed.notify_all()
                    return work
                if not self._over():
                    await self._changed.wait()
        return None

    def _pick(self, lane: Lane) -> Work | None:
        is_on_trial = lane.deaths_in_a_row > 0
        if lane.in_flight and (is_on_trial or any(work.suspect for work in lane.in_flight)):
            return None
        # An engine that died shows that it is well before it costs a suspect its name.
        if self._backlog.suspects and not lane.in_flight and not (is_on_trial and self._waiting):
            return self._backlog.suspects.popleft()
        if not self._primed or len(lane.in_flight) >= self._limits.window_docs:
            return None
        while (work := self._waiting.offer(lane)) is not None:
            if not self._diverts(lane, work):
                return self._take(lane, work)
        if self._backlog.suspects and not lane.in_flight:
            return self._backlog.suspects.popleft()
        return None

    def _diverts(self, lane: Lane, work: Work) -> bool:
        """Whether it does not fit, and so is cut, or has its row."""
        assert lane.info is not None
        if self._backlog.fits(work, lane.info):
            return False
        infos = (each.info for each in self.lanes if each.info and each.gone is None)
        pieces = self._backlog.divert(work, lane, infos)
        if pieces:
            self._group.create_task(self._backlog.cut(pieces, lambda: not self._stranded()))
        self._changed.notify_all()
        return True

    def _take(self, lane: Lane, work: Work) -> Work | None:
        if not self._has_room(lane, work):
            return None
        self._waiting.take(lane, work)
        return work

    def _has_room(self, lane: Lane, work: Work) -> bool:
        limits = self._limits
        if not lane.in_flight:
            return True
        if limits.window_tokens and held_tokens([*lane.in_flight, work]) > limits.window_tokens:
            return False
        return lane.in_flight_tokens < self._fair_share() or self._waiting.is_for(lane, work)

    def _fair_share(self) -> float:
        """In tokens: an engine takes less than its part of what is known, so that none has a queue
        while others have none. The rest goes to those that turn out to be quick."""
        alive = sum(lane.gone is None for lane in self.lanes)
        if alive == 1:
            return math.inf
        in_flight = sum(lane.in_flight_tokens for lane in self.lanes)
        return FAIR_SHARE * (self._backlog.new_tokens + in_flight) / alive

    async def _run_one(self, lane: Lane, work: Work) -> None:
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                result = await lane.engine.generate(work.request_in_group)
        except EngineLost as error:
            self._lose(lane, work, str(error))
        except TimeoutError:
            self._fail(lane, work, f"no answer within {self._limits.request_timeout_s:g} s")
        except Exception as error:
            # Not RequestFailed alone: whatever it is, it costs one document and not the run.
            self._fail(lane, work, describe(error))
        else:
            self._accept(lane, work, result)
        lane.last_done_at = time.monotonic()
        lane.in_flight.remove(work)
        self._waiting.finished(work)
        if work.task.has_answers and not work.task.ended:
            await self._backlog.advance(work.task)
        if work.task.ended:
            self._victims.pop(work.task, None)
        await self._notify()

    def _accept(self, lane: Lane, work: Work, result: Result) -> None:
        lane.served.add(result)
        lane.deaths_in_a_row = 0
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
            self._backlog.end(task, task.failed(error, work.step, engine=name))

    def _die(self, lane: Lane, reason: str) -> None:
        lane.die(reason)
        self._waiting.release(lane)

    def _lose(self, lane: Lane, work: Work, reason: str) -> None:
        self._die(lane, reason)
        task = work.task
        task.death_log.append(reason)
        if task.ended:
            return
        if not work.suspect:
            work.suspect = True
            self._backlog.suspects.append(work)
            return
        victims = self._victims[task]
        victims.append(lane)
        if len(victims) < MAX_LONE_DEATHS:
            # Next, so that engines do not die of one suspect after the other.
            self._backlog.suspects.appendleft(work)
            return
        for victim in victims:
            victim.deaths_in_a_row = 0
        self._fail(lane, work, f"its engine died {len(victims)} times running it alone: {reason}")

    # Ends

    def _finished(self) -> bool:
        return self.read_all and not self.num_open and not self.num_in_flight

    def _stranded(self) -> bool:
        return sum(lane.gone is None for lane in self.lanes) < self._limits.min_engines

    def _over(self) -> bool:
        return self._finished() or self._stranded()

    def _why_stranded(self) -> str:
        gone = [lane.gone for lane in self.lanes if lane.gone is not None]
        reasons = gone[0] + (f" (the first of {len(gone)})" if gone[1:] else "")
        if not self.has_started:
            return f"no engine started: {reasons}"
        return (
            f"{len(self.lanes) - len(gone)} of {len(self.lanes)} engines are left, and "
            f"engines.min_engines is {self._limits.min_engines}: {reasons}; "
            "run again to go on with what is missing"
        )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
