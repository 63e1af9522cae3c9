"""A whole run: schedule, watch, commit, report. Engines are handed in, so no Ray in here."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from arkv_sglang.batch.commit import ROW_SCHEMA, Committer, OutputFolder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.metrics import Mirror, NoMirror
from arkv_sglang.batch.monitor import Monitor
from arkv_sglang.batch.progress import Display, Lines
from arkv_sglang.batch.scheduler import Lane, Limits, Scheduler
from arkv_sglang.batch.tally import Tally
from arkv_sglang.batch.types import (
    OK,
    STATUSES,
    Engine,
    PromptBuilder,
    Row,
    RunFailed,
    Source,
)
from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.html import render_html
from arkv_sglang.report.table import format_table

PACKAGES = ("arkv_sglang", "sglang", "ray", "torch", "transformers", "pyarrow")


def package_versions() -> dict[str, str]:
    """What is installed here, by name, without importing any of it."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


async def run_job(
    config: JobConfig,
    engines: Sequence[Engine],
    source: Source,
    prompts: PromptBuilder,
    folder: OutputFolder,
    say: Callable[[str], None],
    display: Display | None = None,
    make_mirror: Callable[[str], Mirror] | None = None,
) -> dict[str, Any]:
    """Run every document, write the output, return the report. Raises RunFailed.

    Without a ``display`` progress is said, line by line. ``make_mirror``: for
    metrics, from the id of the run.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    run_id = started_at.strftime("%Y%m%dT%H%M%S%fZ")
    committer = Committer(folder, run_id, config.output)
    tally = Tally()
    mirror = make_mirror(run_id) if make_mirror else NoMirror()

    def emit(row: Row) -> None:
        # Before an engine is up nothing is done that is worth an earlier run's results.
        committer.add(row, hold=not scheduler.has_started)
        tally.add(row)
        mirror.row(row)

    scheduler = Scheduler(list(engines), source, prompts, emit, limits(config))
    monitor = Monitor(scheduler, tally, mirror, say)
    try:
        with display or Lines(say, config.run.progress_period_s) as shown:
            await _run_watched(scheduler, monitor, shown, config)
    except BaseException:
        if scheduler.has_started:
            committer.commit()
        raise
    committer.commit()
    say(monitor.progress().line())
    run = {
        "id": run_id,
        "started_at": started_at.isoformat(timespec="seconds"),
        "wall_s": time.monotonic() - started,
    }
    records = [_engine_record(lane, monitor, started) for lane in scheduler.lanes]
    return _write_report(folder, run, records, monitor, config, say)


def check_outcome(report: dict[str, Any], max_failure_rate: float) -> None:
    """Raise RunFailed when too few documents succeeded."""
    documents = report["totals"]["documents"]
    total, failed = documents["all"], documents["all"] - documents[OK]
    if not total:
        raise RunFailed("the input held no documents")
    counts = ", ".join(f"{documents[s]} {s}" for s in STATUSES if s != OK and documents[s])
    if not documents[OK]:
        error = report["failures"][0]["error"]
        raise RunFailed(f"none of {total} documents succeeded ({counts}); the first: {error}")
    if failed / total > max_failure_rate:
        raise RunFailed(
            f"{failed} of {total} documents failed ({counts}), more than run.max_failure_rate "
            f"{max_failure_rate:g} allows"
        )


def limits(config: JobConfig) -> Limits:
    return Limits(
        max_new_tokens=config.sampling.max_new_tokens,
        window_docs=config.engines.window_docs,
        window_tokens=config.engines.window_tokens,
        lookahead_docs=config.run.lookahead_docs,
        request_timeout_s=config.run.request_timeout_s,
    )


async def _run_watched(
    scheduler: Scheduler, monitor: Monitor, display: Display, config: JobConfig
) -> None:
    watchers = (
        asyncio.ensure_future(monitor.sample_every(config.run.sample_period_s)),
        asyncio.ensure_future(monitor.show_every(display.period_s, display.show)),
    )
    try:
        await scheduler.run()
        # So that even the shortest run has figures.
        monitor.mirror_state()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.gather(*map(monitor.sample_once, scheduler.lanes))
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


def _engine_record(lane: Lane, monitor: Monitor, started: float) -> dict[str, Any]:
    series = monitor.series[lane.engine.name]
    ready, done = lane.ready_at, lane.last_done_at
    return {
        "name": lane.engine.name,
        "info": asdict(lane.info) if lane.info else None,
        "gone": lane.gone,
        "deaths": lane.deaths,
        "ready_s": None if ready is None else ready - started,
        "done_s": None if done is None else done - started,
        "samples": series.to_the_end(),
        "peaks": series.peaks,
        "last": series.last,
    }


def _write_report(
    folder: OutputFolder,
    run: dict[str, Any],
    engines: list[dict[str, Any]],
    monitor: Monitor,
    config: JobConfig,
    say: Callable[[str], None],
) -> dict[str, Any]:
    columns = [name for name in ROW_SCHEMA.names if name != "summary"]
    rows = folder.read_rows(columns)
    report = build_report(rows, run, engines, config.snapshot(), package_versions())
    series = {engine["name"]: engine["samples"] for engine in engines}
    folder.write_table("telemetry.parquet", _telemetry_table(series))
    folder.write("report.json", json.dumps(report, indent=2, allow_nan=False).encode())
    folder.write("report.html", render_html(report, series).encode())
    say(format_table(report))
    for name in ("summaries/*.parquet", "telemetry.parquet", "report.json", "report.html"):
        say(folder.path(name))
    return report


def _telemetry_table(series: dict[str, list[dict[str, Any]]]) -> pa.Table:
    samples = [{"engine": name} | sample for name, rows in series.items() for sample in rows]
    names = list(dict.fromkeys(key for sample in samples for key in sample)) or ["engine"]
    return pa.table({key: [sample.get(key) for sample in samples] for key in names})
