"""One pass of engines over documents: scheduled, watched, committed row by row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arkv_sglang.batch.commit import Committer
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.folder import PARTS, OutputFolder
from arkv_sglang.batch.lane import Lane
from arkv_sglang.batch.metrics import Mirror, NoMirror
from arkv_sglang.batch.monitor import Monitor
from arkv_sglang.batch.progress import Display, Lines
from arkv_sglang.batch.resume import Ledger
from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.tally import Tally
from arkv_sglang.batch.task import Recall, recall_nothing
from arkv_sglang.batch.types import Chunk, Engine, PartBuilder, Row, RunFailed, Source


@dataclass(frozen=True, slots=True)
class Job:
    """What all phases of a run share. Without a ``display`` progress is said, line by line.
    ``make_mirror``: for metrics, from the id that they carry."""

    config: JobConfig
    prompts: PartBuilder
    folder: OutputFolder
    say: Callable[[str], None]
    display: Display | None = None
    make_mirror: Callable[[str], Mirror] | None = None

    def mirror(self, run_id: str) -> Mirror:
        return self.make_mirror(run_id) if self.make_mirror else NoMirror()


def limits(config: JobConfig) -> Limits:
    return Limits(
        max_new_tokens=config.sampling.max_new_tokens,
        window_docs=config.engines.window_docs,
        window_tokens=config.engines.window_tokens,
        lookahead_docs=config.run.lookahead_docs,
        group_prefixes=config.run.group_prefixes,
        request_timeout_s=config.run.request_timeout_s,
        max_restarts=config.engines.max_restarts,
        min_engines=config.engines.min_engines,
    )


def drop(chunk: Chunk) -> None:
    pass


class Phase:
    """Made while its event loop runs. ``source`` is what is left of the ledger's documents.
    ``group``: of the part files that its rows go to; chunks are kept of the run's own alone.
    ``label`` stands before its progress."""

    def __init__(
        self,
        job: Job,
        ledger: Ledger,
        engines: Sequence[Engine],
        source: Source,
        mirror: Mirror,
        group: str = PARTS,
        label: str = "",
        recall: Recall = recall_nothing,
    ) -> None:
        config = job.config
        self.tally = Tally()
        strategy = Strategy(config.strategy, job.prompts, recall)
        emit_chunk = self._emit_chunk if group == PARTS else drop
        self.scheduler = Scheduler(
            list(engines), source, job.prompts, self._emit, limits(config), strategy, emit_chunk
        )
        self._job = job
        self._ledger = ledger
        self._mirror = mirror
        self._committer = Committer(job.folder, ledger, config.output, group)
        self._monitor = Monitor(self.scheduler, self.tally, mirror, job.say, label)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until every document has its row. However it ends, what is done is committed. Raises
        RunFailed."""
        job = self._job
        try:
            with job.display or Lines(job.say, job.config.run.progress_period_s) as display:
                await self._run_watched(display)
            self._committer.commit()
        except asyncio.CancelledError:
            self._commit_what_is_done()
            raise
        except Exception:
            # What failed may be the commits themselves; the reason for the end is the first one.
            with contextlib.suppress(RunFailed):
                self._commit_what_is_done()
            raise
        finally:
            self._ledger.stop()
        job.say(self._monitor.progress().line())

    def engine_records(self, started: float) -> list[dict[str, Any]]:
        """For build_report; ``started`` by ``time.monotonic()``."""
        return [self._record(lane, started) for lane in self.scheduler.lanes]

    def _emit(self, row: Row) -> None:
        with self._breaking():
            # Before an engine is up nothing is done that is worth an earlier run's results.
            self._committer.add(row, hold=not self.scheduler.has_started)
        self.tally.add(row)
        self._mirror.row(row)

    def _emit_chunk(self, chunk: Chunk) -> None:
        with self._breaking():
            self._committer.add_chunk(chunk)

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """What cannot be committed ends the run."""
        try:
            yield
        except RunFailed as error:
            self._break(error)

    def _commit_what_is_done(self) -> None:
        if self.scheduler.has_started:
            self._committer.commit()

    async def _run_watched(self, display: Display) -> None:
        monitor, period_s = self._monitor, self._job.config.run.sample_period_s
        running = asyncio.ensure_future(self.scheduler.run())
        watchers = (
            asyncio.ensure_future(monitor.sample_every(period_s)),
            asyncio.ensure_future(monitor.show_every(display.period_s, display.show)),
            asyncio.ensure_future(self._watch_fence()),
        )
        try:
            await asyncio.wait((running, self._broken), return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
            running.result()
            # So that even the shortest run has figures.
            monitor.mirror_state()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30):
                    await asyncio.gather(*map(monitor.sample_once, self.scheduler.lanes))
        finally:
            for task in (running, *watchers):
                task.cancel()
            await asyncio.gather(running, *watchers, return_exceptions=True)

    async def _watch_fence(self) -> None:
        """A commit would notice, too, but engines should not work in vain until then."""
        while (lost := self._job.folder.lost) is None:
            await asyncio.sleep(1)
        self._break(lost)

    def _break(self, error: RunFailed) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    def _record(self, lane: Lane, started: float) -> dict[str, Any]:
        series = self._monitor.series[lane.engine.name]
        ready, done = lane.ready_at, lane.last_done_at
        return {
            "name": lane.engine.name,
            "info": asdict(lane.info) if lane.info else None,
            "gone": lane.gone,
            "deaths": lane.deaths,
            "served": asdict(lane.served),
            "ready_s": None if ready is None else ready - started,
            "done_s": None if done is None else done - started,
            "samples": series.to_the_end(),
            "peaks": series.peaks,
            "last": series.last,
        }
