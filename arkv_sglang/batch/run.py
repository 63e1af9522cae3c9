"""A whole run: schedule, watch, commit, report. Engines are handed in, so no Ray in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from arkv_sglang.batch.commit import Committer
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.folder import (
    DEAD_LETTERS,
    MANIFEST,
    MERGED,
    PARTS,
    REPORTS,
    RESPONSES,
    TELEMETRY,
    OutputFolder,
)
from arkv_sglang.batch.lane import Lane
from arkv_sglang.batch.manifest import FAILED, STOPPED, SUCCEEDED, Manifest
from arkv_sglang.batch.merge import write_merged
from arkv_sglang.batch.metrics import Mirror, NoMirror
from arkv_sglang.batch.monitor import Monitor
from arkv_sglang.batch.openai_responses import COLUMNS, responses
from arkv_sglang.batch.outcome import check_outcome
from arkv_sglang.batch.progress import Display, Lines
from arkv_sglang.batch.recall import read_answers
from arkv_sglang.batch.resume import Ledger, finished, read_outcomes
from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.schema import ROW_SCHEMA
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.tally import Tally
from arkv_sglang.batch.task import Recall
from arkv_sglang.batch.types import (
    Chunk,
    Engine,
    PartBuilder,
    Row,
    RunFailed,
    Source,
    describe,
)
from arkv_sglang.batch.versions import package_versions
from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.html import render_html
from arkv_sglang.report.table import format_table


async def run_job(
    config: JobConfig,
    make_engines: Callable[[], Sequence[Engine]],
    source: Source,
    prompts: PartBuilder,
    folder: OutputFolder,
    say: Callable[[str], None],
    display: Display | None = None,
    make_mirror: Callable[[str], Mirror] | None = None,
) -> dict[str, Any]:
    """Run every document that is not done yet, write the output, return the report. Raises
    RunFailed, with all committed rows in place, as they also are when it is cancelled.

    Engines are made once the folder is known to be in order.
    Without a ``display`` progress is said, line by line. ``make_mirror``: for
    metrics, from the id of the run.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    manifest = Manifest(folder, config, package_versions())
    ledger, recall = _resume(folder, config, manifest.config_hash, say)
    committer = Committer(folder, ledger, config.output)
    tally = Tally()
    mirror = make_mirror(folder.attempt) if make_mirror else NoMirror()
    manifest.begin()
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def emit(row: Row) -> None:
        with _breaking(broken):
            # Before an engine is up nothing is done that is worth an earlier run's results.
            committer.add(row, hold=not scheduler.has_started)
        tally.add(row)
        mirror.row(row)

    def emit_chunk(chunk: Chunk) -> None:
        with _breaking(broken):
            committer.add_chunk(chunk)

    source = ledger.unfinished(source)
    strategy = Strategy(config.strategy, prompts, recall)
    scheduler = Scheduler(
        list(make_engines()), source, prompts, emit, limits(config), strategy, emit_chunk
    )
    monitor = Monitor(scheduler, tally, mirror, say)

    def end(outcome: str, reason: str | None = None) -> None:
        manifest.end(outcome, reason, tally.all.by_status, ledger.skipped)

    try:
        with display or Lines(say, config.run.progress_period_s) as shown:
            await _run_watched(scheduler, monitor, shown, config, folder, broken)
        committer.commit()
        say(monitor.progress().line())
        run = {
            "id": folder.attempt,
            "started_at": started_at.isoformat(timespec="seconds"),
            "wall_s": time.monotonic() - started,
            "documents_skipped": ledger.skipped,
        }
        records = [_engine_record(lane, monitor, started) for lane in scheduler.lanes]
        report = _write_results(folder, ledger, run, records, config, say)
    except asyncio.CancelledError:
        if scheduler.has_started:
            committer.commit()
        end(STOPPED)
        raise
    except Exception as error:
        # What failed may be the commits themselves; the reason for the end is the first one.
        with contextlib.suppress(RunFailed):
            if scheduler.has_started:
                committer.commit()
            end(FAILED, describe(error))
        raise
    finally:
        ledger.stop()
    try:
        check_outcome(report, config.run.max_failure_rate)
    except RunFailed as error:
        end(FAILED, str(error))
    else:
        end(SUCCEEDED)
    return report


def _resume(
    folder: OutputFolder, config: JobConfig, config_hash: str, say: Callable[[str], None]
) -> tuple[Ledger, Recall]:
    parts = folder.parts()
    outcomes = read_outcomes(folder, parts, config_hash) if parts else {}
    done = finished(outcomes, config.output.retry)
    if parts:
        say(
            f"resuming: {len(done):,} documents are done under this configuration "
            f"({config_hash}), {len(outcomes) - len(done):,} that failed are tried again"
        )
    return Ledger(config_hash, done), read_answers(folder, config_hash, done)


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


async def _run_watched(
    scheduler: Scheduler,
    monitor: Monitor,
    display: Display,
    config: JobConfig,
    folder: OutputFolder,
    broken: asyncio.Future[None],
) -> None:
    running = asyncio.ensure_future(scheduler.run())
    watchers = (
        asyncio.ensure_future(monitor.sample_every(config.run.sample_period_s)),
        asyncio.ensure_future(monitor.show_every(display.period_s, display.show)),
        asyncio.ensure_future(_watch_fence(folder, broken)),
    )
    try:
        await asyncio.wait((running, broken), return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            broken.result()
        running.result()
        # So that even the shortest run has figures.
        monitor.mirror_state()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.gather(*map(monitor.sample_once, scheduler.lanes))
    finally:
        for task in (running, *watchers):
            task.cancel()
        await asyncio.gather(running, *watchers, return_exceptions=True)


async def _watch_fence(folder: OutputFolder, broken: asyncio.Future[None]) -> None:
    """A commit would notice, too, but engines should not work in vain until then."""
    while folder.lost is None:
        await asyncio.sleep(1)
    _break(broken, folder.lost)


@contextlib.contextmanager
def _breaking(broken: asyncio.Future[None]) -> Iterator[None]:
    """What cannot be committed ends the run."""
    try:
        yield
    except RunFailed as error:
        _break(broken, error)


def _break(broken: asyncio.Future[None], error: RunFailed) -> None:
    if not broken.done():
        broken.set_exception(error)


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


def _write_results(
    folder: OutputFolder,
    ledger: Ledger,
    run: dict[str, Any],
    engines: list[dict[str, Any]],
    config: JobConfig,
    say: Callable[[str], None],
) -> dict[str, Any]:
    folder.drop_earlier()
    left_out = write_merged(folder, ledger)
    columns = [name for name in ROW_SCHEMA.names if name != "summary"]
    rows, merged = folder.own_rows(columns), folder.read_table(MERGED, columns)
    report = build_report(rows, run, engines, config.snapshot(), package_versions(), merged)
    series = {engine["name"]: engine["samples"] for engine in engines}
    folder.write_table(TELEMETRY, _telemetry_table(series))
    folder.write("report.json", json.dumps(report, indent=2, allow_nan=False).encode())
    folder.write("report.html", render_html(report, series).encode())
    say(format_table(report))
    if left_out:
        say(f"{left_out:,} documents that this input does not have are in {PARTS}/ only")
    names = [MERGED, DEAD_LETTERS, MANIFEST, TELEMETRY, *REPORTS]
    if config.input.format == "openai":
        lines = responses(config, folder.read_table(MERGED, list(COLUMNS)))
        folder.write(RESPONSES, b"".join(lines))
        names.append(RESPONSES)
    for name in names:
        say(folder.path(name))
    return report


def _telemetry_table(series: dict[str, list[dict[str, Any]]]) -> pa.Table:
    samples = [{"engine": name} | sample for name, rows in series.items() for sample in rows]
    names = list(dict.fromkeys(key for sample in samples for key in sample)) or ["engine"]
    return pa.table({key: [sample.get(key) for sample in samples] for key in names})
