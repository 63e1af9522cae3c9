"""A whole run: schedule, watch, commit, report, audit. Engines are handed in, so no Ray in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from arkv_sglang.batch.audit import Audit, AuditMeans
from arkv_sglang.batch.audit_choice import full_kv
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
from arkv_sglang.batch.manifest import FAILED, STOPPED, SUCCEEDED, Manifest
from arkv_sglang.batch.merge import write_merged
from arkv_sglang.batch.metrics import Mirror
from arkv_sglang.batch.openai_responses import COLUMNS, responses
from arkv_sglang.batch.outcome import check_outcome
from arkv_sglang.batch.phase import Job, Phase
from arkv_sglang.batch.progress import Display
from arkv_sglang.batch.recall import read_answers
from arkv_sglang.batch.redact import redact_uris
from arkv_sglang.batch.resume import Ledger, finished, read_outcomes
from arkv_sglang.batch.schema import ROW_SCHEMA
from arkv_sglang.batch.task import Recall
from arkv_sglang.batch.types import Engine, PartBuilder, RunFailed, Source, describe
from arkv_sglang.batch.versions import package_versions
from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.audit import not_run
from arkv_sglang.report.html import render_html
from arkv_sglang.report.table import format_table
from arkv_sglang.report.text import show_count


async def run_job(
    config: JobConfig,
    make_engines: Callable[[], Sequence[Engine]],
    source: Source,
    prompts: PartBuilder,
    folder: OutputFolder,
    say: Callable[[str], None],
    display: Display | None = None,
    make_mirror: Callable[[str], Mirror] | None = None,
    audit_means: AuditMeans | None = None,
) -> dict[str, Any]:
    """Run every document that is not done yet, write the output, audit it if asked to, return the
    report. Raises RunFailed, with all committed rows in place, as they also are when it is
    cancelled.

    Engines are made once the folder is known to be in order.
    Without a ``display`` progress is said, line by line. ``make_mirror``: for
    metrics, from the id of the run. ``audit_means`` must be given if ``audit.fraction`` is not 0.
    """
    started_at, started = datetime.now(UTC), time.monotonic()
    job = Job(config, prompts, folder, say, display, make_mirror)
    manifest = Manifest(folder, config, package_versions())
    audit = None
    if config.audit.fraction:
        assert audit_means is not None, "an audit needs documents and engines of its own"
        audit = Audit(job, audit_means, manifest.add_config(full_kv(config)))
    ledger, recall = _resume(folder, config, manifest.config_hash, say)
    mirror = job.mirror(folder.attempt)
    manifest.begin()
    phase = Phase(job, ledger, make_engines(), ledger.unfinished(source), mirror, recall=recall)

    def end(outcome: str, reason: str | None = None) -> None:
        manifest.end(outcome, reason, phase.tally.by_status, ledger.skipped)

    try:
        await phase.run()
        run = {
            "id": folder.attempt,
            "started_at": started_at.isoformat(timespec="seconds"),
            "wall_s": time.monotonic() - started,
            "documents_skipped": ledger.skipped,
        }
        engines = phase.engine_records(started)
        report = _write_results(folder, ledger, run, engines, config, say)
        failure = _why_failed(report, config)
        if audit is not None and failure is None:
            await _audit(audit, folder, report, engines)
    except asyncio.CancelledError:
        end(STOPPED)
        raise
    except Exception as error:
        with contextlib.suppress(RunFailed):
            end(FAILED, describe(error))
        raise
    end(SUCCEEDED if failure is None else FAILED, failure)
    return report


def _resume(
    folder: OutputFolder, config: JobConfig, config_hash: str, say: Callable[[str], None]
) -> tuple[Ledger, Recall]:
    parts = folder.parts()
    outcomes = read_outcomes(folder, parts, config_hash) if parts else {}
    done = finished(outcomes, config.output.retry)
    if parts:
        say(
            f"resuming: {show_count(len(done), 'document')} done under this configuration "
            f"({config_hash}), {len(outcomes) - len(done):,} to be tried again after a failure"
        )
    return Ledger(config_hash, done), read_answers(folder, config_hash, done)


def _why_failed(report: dict[str, Any], config: JobConfig) -> str | None:
    try:
        check_outcome(report, config.run.max_failure_rate)
    except RunFailed as error:
        return str(error)
    return None


async def _audit(
    audit: Audit, folder: OutputFolder, report: dict[str, Any], engines: list[dict[str, Any]]
) -> None:
    """Add the audit to the report. Raises RunFailed when there was none, which the report then
    says."""
    try:
        report["audit"] = await audit.run()
    except RunFailed as error:
        report["audit"] = not_run(redact_uris(describe(error)))
        _write_report(folder, report, engines)
        raise RunFailed(
            f"the audit failed, and all else is complete: {error}; "
            "run again to repeat it, or pass --set audit.fraction=0"
        ) from None
    _write_report(folder, report, engines)


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
    if config.audit.fraction:
        report["audit"] = not_run("the run ended before it did; run again")
    folder.write_table(TELEMETRY, _telemetry_table(_samples(engines)))
    _write_report(folder, report, engines)
    say(format_table(report))
    if left_out:
        say(f"left in {PARTS}/ only, not being in this input: {show_count(left_out, 'document')}")
    names = [MERGED, DEAD_LETTERS, MANIFEST, TELEMETRY, *REPORTS]
    if config.input.format == "openai":
        lines = responses(config, folder.read_table(MERGED, list(COLUMNS)))
        folder.write(RESPONSES, b"".join(lines))
        names.append(RESPONSES)
    for name in names:
        say(folder.path(name))
    return report


def _write_report(
    folder: OutputFolder, report: dict[str, Any], engines: list[dict[str, Any]]
) -> None:
    folder.write("report.json", json.dumps(report, indent=2, allow_nan=False).encode())
    folder.write("report.html", render_html(report, _samples(engines)).encode())


def _samples(engines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {engine["name"]: engine["samples"] for engine in engines}


def _telemetry_table(series: dict[str, list[dict[str, Any]]]) -> pa.Table:
    samples = [{"engine": name} | sample for name, rows in series.items() for sample in rows]
    names = list(dict.fromkeys(key for sample in samples for key in sample)) or ["engine"]
    return pa.table({key: [sample.get(key) for sample in samples] for key in names})
