"""Drivers in processes of their own, with engines that are not real, to be killed for real.

They are forked from a server that has imported everything, so that one starts in milliseconds."""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

import arkv_sglang.batch.folder
from arkv_sglang.batch.audit import AuditMeans
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.outcome import FAILED, run_to_end
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.store import Store
from arkv_sglang.batch.types import Request, RequestFailed, Result, RunFailed

from .fakes import FakePrompts, QuietEngine
from .process_engines import ProcessEngine

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "huggingface_hub.file_download", __name__])

# On a machine that does other things, too.
DEADLINE_S = 300


@dataclass(frozen=True)
class Plan:
    """What a driver does. ``shared``: its folder is on a file system without locks.
    ``max_file_bytes``: the disk is full for any file that is longer. ``engines``: so many in
    processes of their own, each of which can be started ``starts`` times."""

    corpus: Path
    out: Path
    output: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    document_s: float = 0.005
    shared: bool = False
    max_file_bytes: int | None = None
    engines: int = 0
    starts: int = 10
    window_docs: int = 2

    def make_engines(self) -> list[Any]:
        if not self.engines:
            return [Echo(self.document_s)]
        return [
            ProcessEngine(f"engine-{n}", self.document_s, self.starts) for n in range(self.engines)
        ]

    strategy: str = "single"

    @property
    def config(self) -> JobConfig:
        return JobConfig.model_validate(
            {
                "input": {"path": str(self.corpus)},
                "engine": {"model_path": "some/model", "kv_policy": "arkv"},
                "engines": {"window_docs": self.window_docs, "count": self.engines or 1},
                "strategy": {"kind": self.strategy},
                "output": {"dir": str(self.out), "rows_per_part": 7} | self.output,
                "run": {"max_failure_rate": 0.5, "lookahead_docs": 20},
                "audit": self.audit,
            }
        )


class Echo(QuietEngine):
    """Answers with the beginning of the text. Refuses ``no``, dies of ``poison``, and ``huge`` gets
    an answer of 200 kB."""

    def __init__(self, document_s: float) -> None:
        super().__init__(poison=frozenset({"poison"}), restarts=10**6)
        self.document_s = document_s

    async def generate(self, request: Request) -> Result:
        result = await super().generate(request)
        await asyncio.sleep(self.document_s)
        text = "".join(map(chr, request.input_ids))
        if text.startswith("no"):
            raise RequestFailed("the engine refused it")
        answer = os.urandom(100_000).hex() if text == "huge" else text[:12]
        say(f"answered {request.doc_id}")
        return replace(result, text=answer)


class SharedStore(Store):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.fs = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())


def drive(plan: Plan, log: Path) -> None:
    """The job's program, without Ray."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    obey_permissions()
    if plan.shared:
        arkv_sglang.batch.folder.Store = SharedStore
    if plan.max_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (plan.max_file_bytes, resource.RLIM_INFINITY))
    config = plan.config
    say("begun")
    try:
        folder = OutputFolder(config.output)
    except RunFailed as error:
        say(error)
        sys.exit(FAILED)
    with closing(folder):
        source = open_documents(config.input)
        means = AuditMeans(
            lambda ids: open_documents(config.input, (), ids), lambda full: [Echo(plan.document_s)]
        )
        run = run_job(
            config, plan.make_engines, source, FakePrompts(), folder, say, audit_means=means
        )
        code = run_to_end(run, config.run.max_failure_rate, say)
    sys.exit(code)


def obey_permissions() -> None:
    """Root, too: give up CAP_DAC_OVERRIDE."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for index in (0, 1):
        sets[index] &= ~(1 << 1)
    assert libc.capset(header, sets) == 0


def say(message: object) -> None:
    print(message, flush=True)


class Driver:
    """One that has been started; ``log`` is all that it printed."""

    def __init__(self, plan: Plan) -> None:
        plan.out.parent.mkdir(exist_ok=True, parents=True)
        self.plan = plan
        count = len(list(plan.out.parent.glob("driver-*.log")))
        self._log = plan.out.parent / f"driver-{count}.log"
        self._log.touch()
        self._process = SERVER.Process(target=drive, args=(plan, self._log))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.until_said("begun")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, or less than zero for a signal."""
        self._process.join(timeout=DEADLINE_S)
        assert self._process.exitcode is not None, self.log
        return self._process.exitcode

    def until_committed(self, parts: int = 1) -> list[Path]:
        """Wait until there are so many part files, and name them."""
        self._until(lambda: len(list(self.plan.out.glob("summaries/*.parquet"))) >= parts)
        return list(self.plan.out.glob("summaries/*.parquet"))

    def until_said(self, words: str) -> None:
        self._until(lambda: words in self.log)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline and self.is_alive, self.log
            time.sleep(0.005)


def finish(plan: Plan) -> tuple[int, str]:
    """Run a driver to its end: exit code and log."""
    driver = Driver(plan)
    return driver.wait(), driver.log
