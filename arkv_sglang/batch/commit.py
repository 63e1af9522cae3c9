"""The output folder: whole files only, each written aside, synced, and renamed into place."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.types import KV_KEYS, Row
from arkv_sglang.config import ConfigError

ROW_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("summary", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("ttft_s", pa.float64()),
        pa.field("e2e_s", pa.float64()),
        pa.field("engine", pa.string()),
        *(pa.field(f"kv_{key}", pa.int64()) for key in KV_KEYS),
    ]
)
SUMMARIES = "summaries"
RESULT_FILES = ("report.json", "report.html", "telemetry.parquet", "responses.jsonl")


class OutputFolder:
    """Files under ``output.dir``, local or on an object store. Those of an earlier run are removed
    when the first is written: a run that never gets that far loses nothing."""

    def __init__(self, config: OutputConfig) -> None:
        self.dir = config.dir
        try:
            self.fs, self._root = pafs.FileSystem.from_uri(config.dir)
            self.fs.create_dir(f"{self._root}/{SUMMARIES}", recursive=True)
            old = self._parts(".parquet", ".parquet.tmp")
            self._earlier = [*old, *self._stale_results()]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(
                f"output.dir must be a folder that can be written, got {config.dir!r} ({error}); "
                "choose another"
            ) from None
        if old and config.existing == "fail":
            raise ConfigError(
                f"output.dir must hold no earlier results, got {self.dir!r} with "
                f"{len(old)} part files; choose another or pass --set output.existing=replace"
            )

    def path(self, name: str) -> str:
        """Where a person finds the file: an absolute path or a URI."""
        return f"{self.dir}/{name}"

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write ``name`` whole or not at all."""
        self._remove_earlier()
        target = f"{self._root}/{name}"
        temporary = f"{target}.tmp"
        if isinstance(self.fs, pafs.LocalFileSystem):
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_folder(Path(target).parent)
        else:
            with self.fs.open_output_stream(temporary, compression=None) as stream:
                stream.write(data)
            self.fs.move(temporary, target)

    def write_table(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.write(name, sink.getvalue())

    def read_rows(self, columns: list[str]) -> pa.Table:
        """The rows of this run, without the columns that nobody asked for."""
        paths = [path for path in self._parts(".parquet") if path not in self._earlier]
        parts = [pq.read_table(path, columns=columns, filesystem=self.fs) for path in paths]
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def _parts(self, *suffixes: str) -> list[str]:
        found = self.fs.get_file_info(pafs.FileSelector(f"{self._root}/{SUMMARIES}"))
        return sorted(f.path for f in found if f.base_name.endswith(suffixes))

    def _stale_results(self) -> list[str]:
        found = self.fs.get_file_info([f"{self._root}/{name}" for name in RESULT_FILES])
        return [info.path for info in found if info.is_file]

    def _remove_earlier(self) -> None:
        while self._earlier:
            with suppress(FileNotFoundError):
                self.fs.delete_file(self._earlier[-1])
            self._earlier.pop()


class Committer:
    """Collects rows and commits them as ``summaries/part-<run>-<number>.parquet``."""

    def __init__(self, folder: OutputFolder, run_id: str, config: OutputConfig) -> None:
        self._folder = folder
        self._run_id = run_id
        self._config = config
        self._rows: list[Row] = []
        self._number = 0
        self._last_commit = time.monotonic()
        self.by_status: dict[str, int] = {}

    def add(self, row: Row, hold: bool = False) -> None:
        """Take a row; unless told to hold, commit when enough rows or seconds have gathered."""
        self._rows.append(row)
        self.by_status[row.status] = self.by_status.get(row.status, 0) + 1
        if hold:
            return
        waited_s = time.monotonic() - self._last_commit
        if len(self._rows) >= self._config.rows_per_part or waited_s > self._config.part_period_s:
            self.commit()

    def commit(self) -> None:
        """Write what was taken since the last time, if anything was."""
        if self._rows:
            name = f"{SUMMARIES}/part-{self._run_id}-{self._number:05d}.parquet"
            table = pa.Table.from_pylist([_plain(row) for row in self._rows], schema=ROW_SCHEMA)
            self._folder.write_table(name, table)
            self._rows = []
            self._number += 1
        self._last_commit = time.monotonic()


def _plain(row: Row) -> dict[str, object]:
    fields = {name: getattr(row, name) for name in Row.__slots__ if name != "kv"}
    return fields | {f"kv_{key}": row.kv.get(key) for key in KV_KEYS}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
