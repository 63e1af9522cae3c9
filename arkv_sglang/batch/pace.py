"""How fast one engine goes: measured by a short probe, or read from an earlier run's report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pydantic import BaseModel, ValidationError

from arkv_sglang.batch.config import JobConfig, is_uri
from arkv_sglang.batch.phase import limits
from arkv_sglang.batch.redact import redact
from arkv_sglang.batch.scheduler import Scheduler
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.types import OK, Document, Engine, PromptBuilder, Row, RunFailed, describe
from arkv_sglang.config import ConfigError
from arkv_sglang.report.text import show_count

# What decides over an engine's KV memory and its speed, of what the configuration says about it.
_MEMORY = ("model_path", "device", "mem_fraction_static", "max_total_tokens", "tp_size")
_SPEED = ("model_path", "device", "kv_policy", "kv_policy_config", "tp_size")


@dataclass(frozen=True, slots=True)
class Pace:
    """``tokens_per_s``: prompt and output tokens of one engine. ``output_tokens``: of a request, on
    average. ``capacity_tokens``: what the engine said, under a policy if ``is_compressing``."""

    source: str
    start_s: float
    tokens_per_s: float
    output_tokens: float
    capacity_tokens: int | None
    is_compressing: bool
    warnings: Sequence[str] = ()


async def probe(
    config: JobConfig,
    engine: Engine,
    documents: Sequence[Document],
    prompts: PromptBuilder,
    strategy: Strategy,
) -> Pace:
    """Run ``documents`` on one engine, as a run would. Raises RunFailed if none is answered."""
    found: list[Row] = []
    started = time.monotonic()
    alone = replace(limits(config), min_engines=1)
    scheduler = Scheduler([engine], iter(documents), prompts, found.append, alone, strategy)
    await scheduler.run()
    lane, answered = scheduler.lanes[0], [row for row in found if row.status == OK]
    asked = show_count(len(found), "document")
    if not answered:
        why = found[0].error
        raise RunFailed(f"the probe got no answer of {asked}; the first: {why}")
    assert lane.ready_at is not None and lane.last_done_at is not None and lane.info is not None
    warnings = []
    if len(answered) < len(found):
        warnings.append(f"{len(found) - len(answered)} of its documents failed")
    if len(found) < 2 * config.engines.window_docs:
        warnings.append(
            f"it ran {asked} and engines.window_docs is "
            f"{config.engines.window_docs}, so a full engine may be faster"
        )
    served = lane.served
    return Pace(
        source=f"probe of {asked}",
        start_s=lane.ready_at - started,
        tokens_per_s=served.tokens / (lane.last_done_at - lane.ready_at),
        output_tokens=served.output_tokens / served.requests,
        capacity_tokens=lane.info.capacity_tokens,
        is_compressing=config.engine.get("kv_policy", "none") != "none",
        warnings=warnings,
    )


class _Documents(BaseModel):
    ok: int


class _Figures(BaseModel):
    documents: _Documents
    output_tokens: int
    tokens_per_s: float | None


class _EngineFigures(_Figures):
    ready_s: float | None
    capacity_tokens: int | None


class _RunFigures(BaseModel):
    id: str


class _Sections(BaseModel):
    engine: dict[str, Any]


class _Report(BaseModel):
    """The part of a report.json that a pace is made of."""

    run: _RunFigures
    totals: _Figures
    engines: list[_EngineFigures]
    config: _Sections


def pace_of_report(path: str, config: JobConfig) -> Pace:
    """From a report.json, by path or URI. Raises ConfigError."""
    report = _read(path)
    paces = [engine.tokens_per_s for engine in report.engines if engine.tokens_per_s]
    if not paces:
        raise ConfigError(
            f"--from-report must name a run that answered documents, got none in {path!r}; "
            "name another or use --probe"
        )
    then, now = report.config.engine, redact(config.engine)
    started = [engine.ready_s for engine in report.engines if engine.ready_s is not None]
    capacities = [engine.capacity_tokens for engine in report.engines if engine.capacity_tokens]
    has_this_memory = all(then.get(key) == now.get(key) for key in _MEMORY)
    return Pace(
        source=f"report of run {report.run.id}",
        start_s=max(started, default=0.0),
        tokens_per_s=sum(paces) / len(paces),
        output_tokens=report.totals.output_tokens / max(report.totals.documents.ok, 1),
        capacity_tokens=min(capacities, default=None) if has_this_memory else None,
        is_compressing=then.get("kv_policy", "none") != "none",
        warnings=[
            f"it ran with engine.{key} {then.get(key)!r}, and this run has {now.get(key)!r}"
            for key in _SPEED
            if then.get(key) != now.get(key)
        ],
    )


def _read(path: str) -> _Report:
    try:
        fs, place = pafs.FileSystem.from_uri(path if is_uri(path) else os.path.abspath(path))
        with fs.open_input_stream(place, compression=None) as stream:
            return _Report.model_validate_json(stream.read())
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = describe(error)
        if isinstance(error, ValidationError):
            reason = f"{error.error_count()} of its fields are not a report's"
        raise ConfigError(
            f"--from-report must be a report.json of an earlier run, got {path!r} ({reason}); "
            "name another or use --probe"
        ) from None
