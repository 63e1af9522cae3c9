"""A share of the documents done again with full KV: what compression cost on the user's corpus.

Nothing of the run depends on it. It comes when all else is written, on engines of its own that take
the place of the run's, and its rows are committed and resumed as the run's are.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arkv_sglang.batch.audit_choice import choose, full_kv, without_random
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.folder import AUDITED, FULL_KV, FULL_KV_AGAIN, MERGED
from arkv_sglang.batch.merge import rows_that_count
from arkv_sglang.batch.phase import Job, Phase
from arkv_sglang.batch.resume import (
    Key,
    Ledger,
    Outcome,
    finished,
    hash_document,
    read_outcomes,
)
from arkv_sglang.batch.schema import AUDIT_SCHEMA, ROW_SCHEMA
from arkv_sglang.batch.types import OK, Engine, RunFailed, Source
from arkv_sglang.config import ConfigError
from arkv_sglang.report.aggregate import build_report
from arkv_sglang.report.audit import COMPARED, audit_figures, compared_row, in_words, warning
from arkv_sglang.report.text import show_count

FIGURES = ("documents_per_min", "tokens_per_s", "peak_running_requests", "peak_kv_bytes")
_LABELS = {FULL_KV: "audit: ", FULL_KV_AGAIN: "audit, once more: "}


@dataclass(frozen=True, slots=True)
class AuditMeans:
    """What an audit takes from the job: the documents of some ids, read again (ConfigError), and
    the engines of a configuration, for which those of the run are stopped (in another thread)."""

    reopen: Callable[[Collection[str]], Source]
    make_engines: Callable[[JobConfig], Sequence[Engine]]


class Audit:
    """Of a run whose merged table is there. ``config_hash``: of the configuration without
    compression, which its rows carry."""

    def __init__(self, job: Job, means: AuditMeans, config_hash: str) -> None:
        self._config = job.config
        # As many engines as come up will do.
        engines = job.config.engines.model_copy(update={"min_engines": 1})
        config = full_kv(job.config).model_copy(update={"engines": engines})
        self._job = replace(job, config=config)
        self._means = means
        self._config_hash = config_hash

    async def run(self) -> dict[str, Any]:
        """The report's section. Raises RunFailed when nothing could be compared."""
        started = time.monotonic()
        num_ok, chosen = self._choose()
        twice = dict(itertools.islice(chosen.items(), self._config.audit.repeat_documents))
        left = {
            group: self._left(group, keys)
            for group, keys in ((FULL_KV, chosen), (FULL_KV_AGAIN, twice))
        }
        self._say(
            f"{len(chosen):,} of {num_ok:,} summaries are compared with those of full KV, "
            f"{len(left[FULL_KV]):,} are still to be made, and {len(left[FULL_KV_AGAIN]):,} "
            "of them once more"
        )
        engines = await self._make_engines(max(map(len, left.values())))
        records: dict[str, list[dict[str, Any]]] = {}
        for group, keys in left.items():
            if keys and engines:
                try:
                    phase = await self._answer(group, keys, engines)
                except RunFailed as error:
                    if group == FULL_KV:
                        raise
                    # The comparison stands without them.
                    self._say(f"not all answers of full KV were made once more: {error}")
                    continue
                records[group] = phase.engine_records(started)
                engines = [lane.engine for lane in phase.scheduler.lanes if lane.gone is None]
        lines = self._compare(chosen)
        _check(lines)
        self._job.folder.write_table(AUDITED, pa.Table.from_pylist(lines, schema=AUDIT_SCHEMA))
        section = self._section(lines, num_ok, time.monotonic() - started)
        section["full_kv"] = self._totals(records[FULL_KV]) if FULL_KV in records else None
        self._say(in_words(section))
        if section["warning"]:
            self._say(f"WARNING: {section['warning']}")
        self._job.say(self._job.folder.path(AUDITED))
        return section

    def _say(self, message: str) -> None:
        self._job.say(f"audit: {message}")

    # Which documents

    def _choose(self) -> tuple[int, dict[str, str]]:
        """How many are ok, and the doc_hash of each chosen one by its doc_id."""
        table = self._job.folder.read_table(
            MERGED, ["doc_id", "doc_hash"], pc.field("status") == OK
        )
        hashes = dict(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
        audit = self._config.audit
        return len(hashes), {i: hashes[i] for i in choose(list(hashes), audit.fraction, audit.seed)}

    def _left(self, group: str, keys: Mapping[str, str]) -> dict[str, str]:
        done = finished(self._outcomes(group), self._config.output.retry)
        return dict(key for key in keys.items() if key not in done)

    def _outcomes(self, group: str) -> dict[Key, Outcome]:
        folder = self._job.folder
        parts = folder.parts(group)
        return read_outcomes(folder, parts, self._config_hash) if parts else {}

    # Their answers with full KV

    async def _make_engines(self, num_documents: int) -> Sequence[Engine]:
        """No more than there is work for."""
        if not num_documents:
            return []
        config = self._job.config
        count = min(config.engines.count, num_documents)
        engines = config.engines.model_copy(update={"count": count})
        return await asyncio.to_thread(
            self._means.make_engines, config.model_copy(update={"engines": engines})
        )

    async def _answer(
        self, group: str, keys: Mapping[str, str], engines: Sequence[Engine]
    ) -> Phase:
        ledger = Ledger(self._config_hash)
        documents = await asyncio.to_thread(self._reopen, keys)
        sampling = self._job.config.sampling.model_dump()
        source = without_random(ledger.unfinished(documents), sampling)
        mirror = self._job.mirror(f"{self._job.folder.attempt}-{group}")
        phase = Phase(self._job, ledger, engines, source, mirror, group, _LABELS[group])
        await phase.run()
        return phase

    def _reopen(self, keys: Mapping[str, str]) -> Source:
        try:
            source = self._means.reopen(keys.keys())
        except ConfigError as error:
            raise RunFailed(f"the input cannot be read again: {error}") from None
        same = (each for each in source if keys.get(each.doc_id) == hash_document(each))
        return itertools.islice(same, len(keys))

    # What comes of it

    def _compare(self, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
        """Lines of audit.parquet."""
        full_kv, again = (self._rows(group, chosen) for group in (FULL_KV, FULL_KV_AGAIN))
        is_chosen = pc.field("doc_id").isin(list(chosen))
        rows = self._job.folder.read_table(MERGED, ROW_SCHEMA.names, is_chosen).to_pylist()
        return [
            compared_row(row, full_kv.get(row["doc_id"]), again.get(row["doc_id"]))
            | {name: row[name] for name in ("doc_hash", "config_hash")}
            | {"full_kv_config_hash": self._config_hash}
            for row in rows
        ]

    def _rows(self, group: str, keys: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        folder, outcomes = self._job.folder, self._outcomes(group)
        current = {key: outcomes[key] for key in keys.items() if key in outcomes}
        tables = rows_that_count(folder, folder.parts(group), current)
        return {row["doc_id"]: row for table in tables for row in table.to_pylist()}

    def _totals(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """Figures of the engines with full KV, in all."""
        columns = [name for name in ROW_SCHEMA.names if name != "summary"]
        rows = self._job.folder.own_rows(columns, FULL_KV)
        totals = build_report(rows, {}, records, {}, {})["totals"]
        return {name: totals[name] for name in FIGURES} | {"engines": len(records)}

    def _section(self, lines: list[dict[str, Any]], num_ok: int, wall_s: float) -> dict[str, Any]:
        audit, policy = self._config.audit, str(self._config.engine["kv_policy"])
        figures = audit_figures(lines)
        return {
            "outcome": "done",
            "reason": None,
            "warning": warning(figures, policy, audit.warn_below_rouge_l),
            "policy": policy,
            "documents_ok": num_ok,
            "wall_s": wall_s,
            **figures,
        }


def _check(lines: list[dict[str, Any]]) -> None:
    """Raises RunFailed."""
    statuses = Counter(line["status"] for line in lines)
    if not statuses[COMPARED]:
        counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
        raise RunFailed(
            f"none of {show_count(len(lines), 'document')} could be compared ({counts}); "
            f"the first: {lines[0]['error']}"
        )
