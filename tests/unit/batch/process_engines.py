"""Engines that are not real, in processes that can be killed."""

import asyncio
import json
import signal
import sys
from itertools import count
from typing import Any

from arkv_sglang.batch.types import EngineInfo, EngineLost, Request, RequestFailed, Result

# Answers line by line with the beginning of each text; dies of some.
PROGRAM = """
import json, os, signal, sys, time
document_s = float(sys.argv[1])
for line in sys.stdin:
    number, text = json.loads(line)
    time.sleep(document_s)
    if text.startswith("text of poison"):
        os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps([number, text[:12]]), flush=True)
"""


class ProcessEngine:
    """Of ``starts`` starts at most: after that it never comes back."""

    def __init__(self, name: str, document_s: float, starts: int) -> None:
        self.name = name
        self._document_s = document_s
        self._starts = starts
        self._process: asyncio.subprocess.Process | None = None
        self._calls: dict[int, asyncio.Future[str]] = {}
        self._numbers = count()

    async def start(self) -> EngineInfo:
        self._starts -= 1
        if self._starts < 0:
            raise EngineLost(f"{self.name} never came back")
        # Without site-packages it starts in milliseconds.
        command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(self._document_s)]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self._reading = asyncio.ensure_future(self._read(self._process))
        print(f"{self.name} is process {self._process.pid}", flush=True)
        return EngineInfo(context_tokens=1000, capacity_tokens=4000, device="fake")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            number, text = json.loads(line)
            self._calls.pop(number).set_result(text)
        code = await process.wait()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(self._lost(code))

    def _lost(self, code: int) -> EngineLost:
        return EngineLost(f"{self.name} died: it was killed by {signal.Signals(-code).name}")

    async def generate(self, request: Request) -> Result:
        process, text = self._process, "".join(map(chr, request.input_ids))
        assert process is not None and process.stdin is not None
        if process.returncode is not None:
            raise self._lost(process.returncode)
        if text.startswith("no"):
            raise RequestFailed("the engine refused it")
        number = next(self._numbers)
        call: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        process.stdin.write(json.dumps([number, text]).encode() + b"\n")
        answer = await call
        print(f"answered {request.doc_id}", flush=True)
        return Result(answer, len(text), 5, 0, "stop", 0.1, 0.2)

    async def sample(self) -> dict[str, Any]:
        process = self._process
        if process is not None and process.returncode is not None:
            raise self._lost(process.returncode)
        raise RequestFailed("it has no telemetry")
