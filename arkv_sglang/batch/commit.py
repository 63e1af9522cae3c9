"""Rows on their way to part files."""

from __future__ import annotations

import time

import pyarrow as pa

from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.folder import PARTS, OutputFolder
from arkv_sglang.batch.resume import Ledger
from arkv_sglang.batch.schema import ROW_SCHEMA
from arkv_sglang.batch.types import KV_KEYS, Row


class Committer:
    """Collects rows and commits them, stamped with their key, as the attempt's next part of a
    group."""

    def __init__(
        self, folder: OutputFolder, ledger: Ledger, config: OutputConfig, group: str = PARTS
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._config = config
        self._group = group
        self._rows: list[Row] = []
        self._number = 0
        self._last_commit = time.monotonic()

    def add(self, row: Row, hold: bool = False) -> None:
        """Take a row; unless told to hold, commit when enough rows or seconds have gathered."""
        self._rows.append(row)
        if hold:
            return
        waited_s = time.monotonic() - self._last_commit
        if len(self._rows) >= self._config.rows_per_part or waited_s > self._config.part_period_s:
            self.commit()

    def commit(self) -> None:
        """Write what was taken since the last time, if anything was. Raises RunFailed."""
        if self._rows:
            table = pa.Table.from_pylist(list(map(self._plain, self._rows)), schema=ROW_SCHEMA)
            self._folder.write_part(self._number, table, self._group)
            self._rows = []
            self._number += 1
        self._last_commit = time.monotonic()

    def _plain(self, row: Row) -> dict[str, object]:
        fields = {name: getattr(row, name) for name in Row.__slots__ if name != "kv"}
        return {
            **fields,
            **{f"kv_{key}": row.kv.get(key) for key in KV_KEYS},
            "doc_hash": self._ledger.hashes[row.doc_id],
            "config_hash": self._ledger.config_hash,
            "attempt": self._folder.attempt,
        }
