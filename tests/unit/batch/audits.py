"""Whole runs with an audit, in this process, with engines that are not real."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from arkv_sglang.batch.audit import AuditMeans
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.metrics import Mirror
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import Document, Request, Result

from .fakes import FakePrompts, QuietEngine
from .runs import configured


class Answering(QuietEngine):
    """With what it is told to say of a document."""

    def __init__(self, name: str, answer: Callable[[str], str], **more: Any) -> None:
        super().__init__(name, **more)
        self.answer = answer

    async def generate(self, request: Request) -> Result:
        result = await super().generate(request)
        return replace(result, text=self.answer(request.doc_id))


@dataclass
class Job:
    """``answer`` and ``full_kv`` say what is answered with compression and without. ``more`` is for
    the engines of the audit. ``made``: the configurations that these had."""

    out: Path
    source: list[Any]
    answer: Callable[[str], str] = "summary of {}".format
    full_kv: Callable[[str], str] = "summary of {}".format
    more: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    make_mirror: Callable[[str], Mirror] | None = None
    made: list[JobConfig] = field(default_factory=list)
    engines: list[Answering] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    async def start(self) -> dict[str, Any]:
        config = configured(self.out, **({"audit": {"fraction": 0.25}} | self.sections))
        fleet = [Answering(f"engine-{n}", self.answer) for n in range(config.engines.count)]
        with contextlib.closing(OutputFolder(config.output)) as folder:
            return await run_job(
                config,
                lambda: fleet,
                iter(self.source),
                FakePrompts(),
                folder,
                self.said.append,
                make_mirror=self.make_mirror,
                audit_means=AuditMeans(self.reopen, self.make_engines),
            )

    def run(self) -> dict[str, Any]:
        return asyncio.run(self.start())

    def reopen(self, doc_ids: Any) -> Any:
        return (document for document in self.source if document.doc_id in doc_ids)

    def make_engines(self, config: JobConfig) -> list[Answering]:
        self.made.append(config)
        count = range(config.engines.count)
        self.engines = [Answering(f"audit-{n}", self.full_kv, **self.more) for n in count]
        return self.engines

    @property
    def lines(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = pq.read_table(self.out / "audit.parquet").to_pylist()
        return lines

    @property
    def answered(self) -> list[str]:
        """By the engines of the audit, in no order."""
        return sorted(doc_id for engine in self.engines for doc_id in engine.seen)


def documents(count: int, **more: Any) -> list[Any]:
    return [Document(f"d{n}", "x" * (20 + n), **more) for n in range(count)]
