"""Watches a run: samples each engine's telemetry and reckons how far it is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from arkv_sglang.batch.lane import Lane
from arkv_sglang.batch.metrics import Mirror, RunState
from arkv_sglang.batch.progress import Progress
from arkv_sglang.batch.scheduler import Scheduler
from arkv_sglang.batch.tally import Served, Tally
from arkv_sglang.batch.types import EngineLost, Sample, describe


@dataclass(slots=True)
class Series:
    """One engine's samples. A long run keeps at most ``limit`` of them, evenly thinned; the
    peaks are those of all samples."""

    limit: int = 2000
    samples: list[Sample] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    last: Sample = field(default_factory=dict)
    _stride: int = 1
    _count: int = 0

    def add(self, sample: Sample) -> None:
        self.last = sample
        for key, value in sample.items():
            self.peaks[key] = max(value, self.peaks.get(key, value))
        if self._count % self._stride == 0:
            self.samples.append(sample)
        self._count += 1
        if len(self.samples) >= self.limit:
            del self.samples[1::2]
            self._stride *= 2

    def to_the_end(self) -> list[Sample]:
        """What was kept, and the last sample of all, which has the counts of the whole run."""
        is_kept = not self.samples or self.samples[-1] is self.last
        return self.samples if is_kept else [*self.samples, self.last]


class Monitor:
    """Samples and progress of a scheduler's run, until cancelled. ``label`` is the progress's."""

    def __init__(
        self,
        scheduler: Scheduler,
        tally: Tally,
        mirror: Mirror,
        say: Callable[[str], None],
        label: str = "",
    ) -> None:
        self.series = {lane.engine.name: Series() for lane in scheduler.lanes}
        self._scheduler = scheduler
        self._tally = tally
        self._mirror = mirror
        self._say = say
        self._label = label
        self._started = time.monotonic()
        self._complaints: set[str] = set()

    async def sample_every(self, period_s: float) -> None:
        """One loop per engine: an engine that is slow to answer does not hold up the others."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirror_state(period_s))
            for lane in self._scheduler.lanes:
                group.create_task(self._sample(lane, period_s))

    async def show_every(self, period_s: float, show: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(period_s)
            show(self.progress())

    async def sample_once(self, lane: Lane) -> None:
        name, deaths = lane.engine.name, lane.deaths
        if not lane.up:
            return
        try:
            values = await lane.engine.sample()
        except EngineLost as error:
            # Else it is news of a death that is known, and of an engine that may be up again.
            if lane.deaths == deaths:
                await self._scheduler.lose_idle(lane, str(error))
            return
        except Exception as error:
            self._complain_once(f"no telemetry of {name}: {describe(error)}")
            return
        # Metrics and the report, which is JSON, have neither infinity nor NaN.
        values = {key: value for key, value in values.items() if math.isfinite(value)}
        now = {"t_s": time.monotonic() - self._started}
        self.series[name].add(now | values | lane.served.as_sample())
        self._mirror.sample(name, values)

    def _complain_once(self, message: str) -> None:
        if message not in self._complaints:
            self._complaints.add(message)
            self._say(message)

    async def _mirror_state(self, period_s: float) -> None:
        while True:
            self.mirror_state()
            await asyncio.sleep(period_s)

    def mirror_state(self) -> None:
        scheduler = self._scheduler
        for lane in scheduler.lanes:
            for event in (lane.last_death, lane.gone):
                if event:
                    self._complain_once(event)
        self._mirror.state(
            RunState(
                waiting=scheduler.num_waiting,
                engines_up=sum(lane.up for lane in scheduler.lanes),
                in_flight={lane.engine.name: len(lane.in_flight) for lane in scheduler.lanes},
                deaths={lane.engine.name: lane.deaths for lane in scheduler.lanes},
            )
        )

    async def _sample(self, lane: Lane, period_s: float) -> None:
        while True:
            await self.sample_once(lane)
            await asyncio.sleep(period_s)

    def progress(self) -> Progress:
        scheduler, tally = self._scheduler, self._tally
        served = self._served()
        ready = [lane.ready_at for lane in scheduler.lanes if lane.ready_at is not None]
        busy_s = time.monotonic() - min(ready) if ready else None
        return Progress(
            elapsed_s=time.monotonic() - self._started,
            done=tally.documents,
            known=tally.documents + scheduler.num_open,
            read_all=scheduler.read_all,
            failed=tally.failed,
            engines_up=sum(lane.up for lane in scheduler.lanes),
            engines=len(scheduler.lanes),
            in_flight=scheduler.num_in_flight,
            tokens_per_s=served.tokens / max(busy_s, 1e-9) if busy_s is not None else None,
            cache_hit_ratio=served.cache_hit_ratio,
            kv_original_bytes=self._kv_bytes("original"),
            kv_quantized_bytes=self._kv_bytes("quantized"),
            left_s=self._left_s(busy_s),
            label=self._label,
        )

    def _left_s(self, busy_s: float | None) -> float | None:
        """By tokens and not by documents, since the longest are handed out first."""
        left = self._scheduler.tokens_left
        done = self._served().prompt_tokens
        if busy_s is None or not (left and done and self._scheduler.read_all):
            return None
        return left * busy_s / done

    def _served(self) -> Served:
        return sum((lane.served for lane in self._scheduler.lanes), Served())

    def _kv_bytes(self, tier: str) -> float:
        """Of the engines that are up, as last sampled."""
        lanes = (lane for lane in self._scheduler.lanes if lane.up)
        return sum(self.series[lane.engine.name].last.get(f"kv_{tier}_bytes", 0) for lane in lanes)
