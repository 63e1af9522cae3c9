"""Rows on their way to part files."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pyarrow as pa

from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.folder import CHUNKS, PARTS, OutputFolder
from arkv_sglang.batch.resume import Ledger
from arkv_sglang.batch.schema import CHUNK_SCHEMA, ROW_SCHEMA
from arkv_sglang.batch.types import KV_KEYS, Chunk, Result, Row


class Committer:
    """Collects rows, and the chunks of documents in several requests, and commits them, stamped
    with their key, as the attempt's next parts of a group, and of the chunks. A document's chunks
    come no later than its row."""

    def __init__(
        self, folder: OutputFolder, ledger: Ledger, config: OutputConfig, group: str = PARTS
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._config = config
        self._group = group
        self._rows: list[Row] = []
        self._chunks: list[Chunk] = []
        self._number = 0
        self._last_commit = time.monotonic()

    def add(self, row: Row, hold: bool = False) -> None:
        """Take a row; unless told to hold, commit when enough rows or seconds have gathered."""
        self._rows.append(row)
        if not hold:
            self._commit_if_due()

    def add_chunk(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._commit_if_due()

    def commit(self) -> None:
        """Write what was taken since the last time, if anything was. Raises RunFailed."""
        if self._chunks:
            chunks = pa.Table.from_pylist(list(map(self._plain_chunk, self._chunks)), CHUNK_SCHEMA)
            self._folder.write_part(self._number, chunks, CHUNKS)
        if self._rows:
            rows = pa.Table.from_pylist(list(map(self._plain_row, self._rows)), ROW_SCHEMA)
            self._folder.write_part(self._number, rows, self._group)
        if self._chunks or self._rows:
            self._chunks, self._rows = [], []
            self._number += 1
        self._last_commit = time.monotonic()

    def _commit_if_due(self) -> None:
        gathered = max(len(self._rows), len(self._chunks))
        waited_s = time.monotonic() - self._last_commit
        if gathered >= self._config.rows_per_part or waited_s > self._config.part_period_s:
            self.commit()

    def _plain_row(self, row: Row) -> dict[str, object]:
        fields = {name: getattr(row, name) for name in Row.__slots__ if name != "kv"}
        return fields | self._kv_and_stamp(row.kv, row.doc_id)

    def _plain_chunk(self, chunk: Chunk) -> dict[str, object]:
        fields = {name: getattr(chunk, name) for name in Chunk.__slots__ if name != "result"}
        result = {
            name: getattr(chunk.result, name)
            for name in Result.__slots__
            if name not in ("kv", "text")
        }
        summary = {"summary": chunk.result.text}
        return fields | summary | result | self._kv_and_stamp(chunk.result.kv, chunk.doc_id)

    def _kv_and_stamp(self, kv: Mapping[str, int], doc_id: str) -> dict[str, object]:
        return {
            **{f"kv_{key}": kv.get(key) for key in KV_KEYS},
            "doc_hash": self._ledger.hashes[doc_id],
            "config_hash": self._ledger.config_hash,
            "attempt": self._folder.attempt,
        }
