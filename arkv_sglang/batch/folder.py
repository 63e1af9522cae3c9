"""The output folder as one driver has it: its attempt, its part files, what may be replaced."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from arkv_sglang.batch.config import OutputConfig
from arkv_sglang.batch.fence import Fence
from arkv_sglang.batch.schema import ROW_SCHEMA
from arkv_sglang.batch.store import Store, is_torn
from arkv_sglang.batch.types import RunFailed, describe
from arkv_sglang.config import ConfigError

PARTS = "summaries"
# What became of each request of documents in several.
CHUNKS = "chunks"
# Of the audit: answers with full KV, and some of them once more.
FULL_KV, FULL_KV_AGAIN = "audit", "audit_again"
GROUPS = (PARTS, CHUNKS, FULL_KV, FULL_KV_AGAIN)
PARQUET = ".parquet"
MERGED = "summaries.parquet"
DEAD_LETTERS = "dead_letter.parquet"
TELEMETRY = "telemetry.parquet"
AUDITED = "audit.parquet"
MANIFEST = "manifest.json"
REPORTS = ("report.json", "report.html")
RESPONSES = "responses.jsonl"
# Made of the part files, and stale without them. The manifest tells of earlier attempts, too.
DERIVED = (MERGED, DEAD_LETTERS, TELEMETRY, AUDITED, *REPORTS, RESPONSES)

_NUMBER = re.compile(rf"(?:{'|'.join(GROUPS)})/part-(\d{{5}})-")
_FAILURES = (pa.ArrowException, OSError)


class OutputFolder:
    """Files under ``output.dir``, which no other driver touches until ``close``.

    ``attempt`` names this driver's run, and sorts behind all earlier ones: it begins with a count
    and not with a clock. With ``existing: replace`` what earlier ones left is as good as gone, and
    goes when ``drop_earlier`` is called: a run that never gets that far loses nothing."""

    def __init__(self, config: OutputConfig) -> None:
        """Raises ConfigError, or Held when another driver has the folder."""
        self.dir = config.dir
        try:
            self.store = Store(config.dir)
            self.store.make_folder(PARTS)
            self._fence = Fence(self.store, config.lease_s, repr(config.dir))
            self._fence.acquire()
            try:
                self._open(config)
            except BaseException:
                self.close()
                raise
        except (*_FAILURES, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"output.dir must be a folder that can be written, got {config.dir!r} ({error}); "
                "check the rights to it and, for a URI, network and credentials, or choose another"
            ) from None

    def _open(self, config: OutputConfig) -> None:
        in_parts = [name for group in GROUPS for name in self._in(group)]
        beside = self.store.names()
        for name in (*in_parts, *beside):
            if is_torn(name):
                self.store.delete(name)
        parts = [name for name in in_parts if name.endswith(PARQUET)]
        self.attempt = _next_attempt(parts)
        self._earlier: list[str] = []
        if parts and config.existing == "fail":
            raise ConfigError(
                f"output.dir must hold no earlier results, got {self.dir!r} with "
                f"{len(parts)} part files; choose another or pass --set output.existing=resume"
            )
        if config.existing == "replace":
            self._earlier = [*parts, *(name for name in DERIVED if name in beside)]

    def close(self) -> None:
        """Let other drivers in."""
        self._fence.release()

    @property
    def lost(self) -> RunFailed | None:
        """Why this driver must stop, once another one has taken the folder over."""
        return self._fence.lost

    def path(self, name: str) -> str:
        """Where a person finds the file: an absolute path or a URI."""
        return f"{self.dir}/{name}"

    # Writing

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """A binary file to write to; it appears whole, or not at all. Raises RunFailed."""
        with self._changing(f"{name} could not be written"), self.store.create(name) as file:
            yield file
            # At the last moment: writing may have taken long.
            self._fence.check()

    def write(self, name: str, data: bytes) -> None:
        """Write ``name`` whole or not at all. Raises RunFailed."""
        with self.create(name) as file:
            file.write(data)

    def write_table(self, name: str, table: pa.Table) -> None:
        with self.create(name) as file:
            pq.write_table(table, file, compression="zstd")

    def write_part(self, number: int, table: pa.Table, group: str = PARTS) -> None:
        """Commit rows. Names sort by attempt and then by number, and so in time."""
        self.drop_earlier()
        if group != PARTS:
            # Few runs need it, so it is not there from the beginning.
            with self._changing(f"{group} could not be made"):
                self.store.make_folder(group)
        self.write_table(f"{group}/part-{self.attempt}-{number:05d}.parquet", table)

    def drop_earlier(self) -> None:
        """Remove what this run replaces. Raises RunFailed."""
        while self._earlier:
            with self._changing(f"{self._earlier[-1]} could not be removed"):
                self._fence.check()
                self.store.delete(self._earlier[-1])
            self._earlier.pop()

    @contextmanager
    def _changing(self, failure: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            raise RunFailed(
                f"output.dir must stay writable, got {self.dir!r} where {failure} "
                f"({describe(error)}); what was committed is intact: make room or restore the "
                "folder, and run again to resume"
            ) from None

    # Reading

    def parts(self, group: str = PARTS) -> list[str]:
        """The part files in the order of their commits, without those that are replaced. Raises
        RunFailed."""
        with self.reading():
            found = self._in(group)
        return [n for n in found if n.endswith(PARQUET) and n not in self._earlier]

    def _in(self, group: str) -> list[str]:
        # The first is there from the beginning, so without it something is wrong.
        return self.store.names(group, missing_ok=group != PARTS)

    def rows(self, parts: list[str], schema: pa.Schema = ROW_SCHEMA) -> pads.Dataset:
        """Their rows, in that order; columns that a part lacks are null."""
        paths = [self.store.path(name) for name in parts]
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        return pads.dataset(paths, schema=nullable, format="parquet", filesystem=self.store.fs)

    def own_rows(self, columns: list[str], group: str = PARTS) -> pa.Table:
        """What this attempt committed."""
        prefix = f"{group}/part-{self.attempt}-"
        own = [name for name in self.parts(group) if name.startswith(prefix)]
        with self.reading():
            return self.rows(own).to_table(columns=columns)

    def read_table(
        self, name: str, columns: list[str], rows: pc.Expression | None = None
    ) -> pa.Table:
        """A derived table, or of its rows those for which the expression holds."""
        with self.reading():
            return pq.read_table(
                self.store.path(name),
                columns=columns,
                filters=rows,
                filesystem=self.store.fs,
                partitioning=None,
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What cannot be read is one sentence: RunFailed."""
        try:
            yield
        except _FAILURES as error:
            raise RunFailed(
                f"output.dir must hold part files that can be read, got {self.dir!r} "
                f"({describe(error)}); remove the damaged one, and its documents are done again"
            ) from None


def _next_attempt(parts: list[str]) -> str:
    numbers = [int(match[1]) for match in map(_NUMBER.search, parts) if match]
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{max(numbers, default=0) + 1:05d}-{now}-{secrets.token_hex(2)}"
