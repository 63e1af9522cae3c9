"""Watches a run: samples each engine's telemetry and prints a plain progress line."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arkv_sglang.batch.scheduler import Lane, Scheduler
from arkv_sglang.batch.types import OK, EngineLost, Sample, describe

MIB = 1 << 20


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
        # The report is JSON, which has neither infinity nor NaN.
        sample = {key: value for key, value in sample.items() if math.isfinite(value)}
        self.last = sample
        for key, value in sample.items():
            self.peaks[key] = max(value, self.peaks.get(key, value))
        if self._count % self._stride == 0:
            self.samples.append(sample)
        self._count += 1
        if len(self.samples) >= self.limit:
            del self.samples[1::2]
            self._stride *= 2


class Monitor:
    """Samples and progress of a scheduler's run, until cancelled."""

    def __init__(
        self, scheduler: Scheduler, by_status: Mapping[str, int], say: Callable[[str], None]
    ) -> None:
        self.series = {lane.engine.name: Series() for lane in scheduler.lanes}
        self._scheduler = scheduler
        self._by_status = by_status
        self._say = say
        self._started = time.monotonic()
        self._complaints: set[str] = set()

    async def sample_every(self, period_s: float) -> None:
        """One loop per engine: an engine that is slow to answer does not hold up the others."""
        async with asyncio.TaskGroup() as group:
            for lane in self._scheduler.lanes:
                group.create_task(self._sample(lane, period_s))

    async def report_every(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            self._say(self.line())

    async def sample_once(self, lane: Lane) -> None:
        if not lane.up:
            return
        try:
            values = await lane.engine.sample()
            self.series[lane.engine.name].add({"t_s": time.monotonic() - self._started, **values})
        except EngineLost:
            # The request that was lost with it tells the scheduler.
            return
        except Exception as error:
            self._complain_once(f"no telemetry of {lane.engine.name}: {describe(error)}")

    def _complain_once(self, message: str) -> None:
        if message not in self._complaints:
            self._complaints.add(message)
            self._say(message)

    async def _sample(self, lane: Lane, period_s: float) -> None:
        while True:
            await self.sample_once(lane)
            await asyncio.sleep(period_s)

    def line(self) -> str:
        scheduler = self._scheduler
        done = sum(self._by_status.values())
        left = scheduler.num_waiting + scheduler.num_in_flight
        total = f"{done + left}" if scheduler.read_all else f"{done + left}+"
        up = sum(lane.up for lane in scheduler.lanes)
        elapsed = time.monotonic() - self._started
        parts = [
            f"{done}/{total} documents",
            f"{done - self._by_status.get(OK, 0)} failed",
            f"{up}/{len(scheduler.lanes)} engines up",
            f"{scheduler.num_in_flight} in flight",
        ]
        ready = [lane.ready_at for lane in scheduler.lanes if lane.ready_at is not None]
        if ready:
            busy_s = time.monotonic() - min(ready)
            tokens = sum(lane.tokens for lane in scheduler.lanes)
            parts.append(f"{tokens / max(busy_s, 1e-9):,.0f} tokens/s")
            parts.append(f"KV {self._kv('original')} bf16 + {self._kv('quantized')} fp8")
            answered = sum(lane.docs for lane in scheduler.lanes)
            if answered and scheduler.read_all and left:
                parts.append(f"about {left * busy_s / answered:,.0f} s left")
        return f"[{elapsed:6.0f} s] " + ", ".join(parts)

    def _kv(self, tier: str) -> str:
        used = sum(series.last.get(f"kv_{tier}_bytes", 0) for series in self.series.values())
        return f"{used / MIB:,.1f} MiB"
