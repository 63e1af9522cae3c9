"""The tables made of all part files: a row for each document of the input, and the failed ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arkv_sglang.batch.folder import DEAD_LETTERS, MERGED, OutputFolder
from arkv_sglang.batch.resume import Key, Ledger, Outcome, read_outcomes
from arkv_sglang.batch.schema import DEAD_LETTER_SCHEMA, ROW_SCHEMA
from arkv_sglang.batch.types import OK, RunFailed


def write_merged(folder: OutputFolder, ledger: Ledger) -> int:
    """Write both tables. Returns how many documents of this configuration the parts hold that this
    input does not have: those are in the parts only. Holds one batch of rows at a time, and keys.
    Raises RunFailed."""
    parts = folder.parts()
    outcomes = read_outcomes(folder, parts, ledger.config_hash) if parts else {}
    current = {key: outcomes[key] for key in ledger.keys if key in outcomes}
    if len(current) < len(ledger.hashes):
        raise RunFailed(
            f"each of {len(ledger.hashes)} documents must have a row, got {len(current)} in "
            f"{folder.path('summaries')}; leave its files alone while a driver runs, and run again"
        )
    failed: list[pa.Table] = []
    with folder.create(MERGED) as file, pq.ParquetWriter(file, ROW_SCHEMA) as writer:
        for rows in rows_that_count(folder, parts, current):
            writer.write_table(rows)
            failed.append(_dead_letters(rows, current))
    folder.write_table(DEAD_LETTERS, pa.concat_tables([DEAD_LETTER_SCHEMA.empty_table(), *failed]))
    known = {doc_id for doc_id, _ in outcomes}
    return len(known - ledger.hashes.keys())


def rows_that_count(
    folder: OutputFolder, parts: list[str], current: dict[Key, Outcome]
) -> Iterator[pa.Table]:
    """The row of each key, in the order of the parts; one batch at a time. Raises RunFailed."""
    if not parts:
        return
    positions = np.sort(np.array([each.position for each in current.values()], dtype=np.int64))
    begin = 0
    with folder.reading():
        for batch in folder.rows(parts).to_batches():
            end = begin + batch.num_rows
            low, high = np.searchsorted(positions, (begin, end))
            rows = pa.Table.from_batches([batch]).take(positions[low:high] - begin)
            begin = end
            if rows.num_rows:
                yield rows.cast(ROW_SCHEMA)


def _dead_letters(rows: pa.Table, current: dict[Key, Outcome]) -> pa.Table:
    failed = rows.filter(pc.not_equal(rows["status"], OK))
    keys = zip(failed["doc_id"].to_pylist(), failed["doc_hash"].to_pylist(), strict=True)
    attempts = pa.array([current[key].attempts for key in keys], pa.int64())
    return (
        failed.append_column("attempts", attempts)
        .select(DEAD_LETTER_SCHEMA.names)
        .cast(DEAD_LETTER_SCHEMA)
    )
