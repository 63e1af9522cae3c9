import asyncio
from array import array

from arkv_sglang.batch.lane import Work
from arkv_sglang.batch.task import Step, Task, whole
from arkv_sglang.batch.types import (
    Document,
    EngineInfo,
    EngineLost,
    Part,
    Request,
    RequestFailed,
    Result,
)


class FakeEngine:
    """Answers after a moment. Dies of the documents in ``poison``, ``restarts`` times at most."""

    def __init__(
        self,
        name: str = "engine-0",
        poison: frozenset[str] = frozenset(),
        fails: frozenset[str] = frozenset(),
        restarts: int = 100,
        start_s: float = 0.0,
        starts: bool = True,
    ) -> None:
        self.name = name
        self.poison, self.fails = poison, fails
        self.restarts, self.start_s, self.starts = restarts, start_s, starts
        self.seen: list[str] = []
        self.running = self.peak_running = self.peak_tokens = self.tokens = 0
        self.dead = asyncio.Event()

    async def start(self) -> EngineInfo:
        await asyncio.sleep(self.start_s)
        if not self.starts or self.restarts < 0:
            raise EngineLost(f"{self.name} could not start")
        self.dead = asyncio.Event()
        return EngineInfo(context_tokens=1000, capacity_tokens=4000, device="fake")

    async def generate(self, request: Request) -> Result:
        dead = self.dead
        self.seen.append(request.doc_id)
        self.running += 1
        self.tokens += request.prompt_tokens
        self.peak_running = max(self.peak_running, self.running)
        self.peak_tokens = max(self.peak_tokens, self.tokens)
        try:
            await asyncio.sleep(0.001 + request.prompt_tokens * 1e-6)
            if self.dies_of(request) and not dead.is_set():
                self.restarts -= 1
                dead.set()
            if dead.is_set():
                raise EngineLost(f"{self.name} died")
        finally:
            self.running -= 1
            self.tokens -= request.prompt_tokens
        if request.doc_id in self.fails:
            raise RequestFailed("the engine refused it")
        n = request.prompt_tokens
        return Result(f"summary of {request.doc_id}", n, 5, n // 2, "stop", 0.1, 0.2)

    def dies_of(self, request: Request) -> bool:
        return request.doc_id in self.poison

    async def sample(self) -> dict[str, float]:
        return {
            "running_requests": self.running,
            "kv_original_bytes": self.tokens,
            "kv_quantized_bytes": 0,
            "kv_bytes": self.tokens,
            "kv_pool_bytes": 4000,
        }


class QuietEngine(FakeEngine):
    """Without telemetry, and so without plots, which take longer than all the rest of a run."""

    async def sample(self) -> dict[str, float]:
        raise RequestFailed("it has no telemetry")


class FakePrompts:
    """One token per character."""

    def build(self, document: Document) -> Request:
        if document.text == "unrenderable":
            raise KeyError("no such variable")
        return self._request(document, document.text)

    def build_part(self, document: Document, part: Part, text: str, summary: str = "") -> Request:
        return self._request(document, f"{part}|{summary}|{text}")

    def token_starts(self, text: str) -> range:
        return range(len(text))

    def _request(self, document: Document, prompt: str) -> Request:
        return Request(document.doc_id, array("I", map(ord, prompt)), document.sampling)


def work_of(request: Request, turn: int | None = None) -> Work:
    """Of a document that is one request; with a ``turn`` it passes for part of one."""
    task = Task(Document(request.doc_id, ""), request.prompt_tokens, whole(request), turn=turn)
    return Work(task, Step(request))
