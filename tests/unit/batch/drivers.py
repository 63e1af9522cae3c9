"""Drivers in processes of their own, with engines that are not real, to be killed for real.

They are forked from a server that has imported everything, so that one starts in milliseconds."""

import asyncio
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

import arkv_sglang.batch.folder
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.outcome import FAILED, run_to_end
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.store import Store
from arkv_sglang.batch.types import Request, RequestFailed, Result, RunFailed

from .fakes import FakeEngine, FakePrompts

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "huggingface_hub.file_download", __name__])


@dataclass(frozen=True)
class Plan:
    """What a driver does. ``shared``: its folder is on a file system without locks.
    ``max_file_bytes``: the disk is full for any file that is longer."""

    corpus: Path
    out: Path
    output: dict[str, Any] = field(default_factory=dict)
    document_s: float = 0.005
    shared: bool = False
    max_file_bytes: int | None = None
    user: int | None = None

    @property
    def config(self) -> JobConfig:
        return JobConfig.model_validate(
            {
                "input": {"path": str(self.corpus)},
                "engine": {"model_path": "some/model"},
                "engines": {"window_docs": 2},
                "output": {"dir": str(self.out), "rows_per_part": 7} | self.output,
                "run": {"max_failure_rate": 0.5, "lookahead_docs": 20},
            }
        )


class Echo(FakeEngine):
    """Answers with the beginning of the text. Refuses ``no`` and dies of ``poison``."""

    def __init__(self, document_s: float) -> None:
        super().__init__(poison=frozenset({"poison"}), restarts=10**6)
        self.document_s = document_s

    async def generate(self, request: Request) -> Result:
        result = await super().generate(request)
        await asyncio.sleep(self.document_s)
        text = "".join(map(chr, request.input_ids))
        if text.startswith("no"):
            raise RequestFailed("the engine refused it")
        answer = text if text.startswith("long answer") else text[:12]
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
    if plan.user is not None:
        os.seteuid(plan.user)
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
        run = run_job(config, [Echo(plan.document_s)], source, FakePrompts(), folder, say)
        code = run_to_end(run, config.run.max_failure_rate, say)
    sys.exit(code)


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
        while not self.log and self._process.is_alive():
            time.sleep(0.001)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def send(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, or less than zero for a signal."""
        self._process.join(timeout=60)
        assert self._process.exitcode is not None, self.log
        return self._process.exitcode

    def until_committed(self, parts: int = 1) -> list[Path]:
        """Wait until there are so many part files, and name them."""
        deadline = time.monotonic() + 60
        while len(found := list(self.plan.out.glob("summaries/*.parquet"))) < parts:
            assert time.monotonic() < deadline and self._process.is_alive(), self.log
            time.sleep(0.005)
        return found


def finish(plans: Sequence[Plan]) -> list[tuple[int, str]]:
    """Run drivers at once, to their ends: exit codes and logs."""
    drivers = [Driver(plan) for plan in plans]
    return [(driver.wait(), driver.log) for driver in drivers]
