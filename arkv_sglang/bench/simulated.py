"""An engine that takes as long as one on a GPU would, by a simple model of what SGLang does."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from arkv_sglang.batch.types import EngineInfo, Request, Result

OUTPUT_TOKENS = 256


@dataclass(frozen=True)
class Speed:
    """Roughly a model of 8 billion parameters on one GPU of 80 GB. A step of decode takes
    ``step_s``, and ``running_s`` more for each request in it."""

    prefill_tokens_per_s: float = 20_000.0
    step_s: float = 0.01
    running_s: float = 0.000_15
    capacity_tokens: int = 400_000

    def alone_s(self, prompt_tokens: int) -> float:
        """What one request takes on an idle engine."""
        return prompt_tokens / self.prefill_tokens_per_s + OUTPUT_TOKENS * (
            self.step_s + self.running_s
        )


class SimulatedEngine:
    """Prompts are prefilled in the order in which they come, as soon as there is room, while
    decode waits; requests that have been prefilled are decoded together.

    Times are of the event loop's clock; ``busy_until_s`` is when the last answer was given."""

    STRIDE = 16

    def __init__(self, name: str, start_s: float, speed: Speed) -> None:
        self.name, self.start_s = name, start_s
        self.busy_until_s = start_s
        self.num_answered = 0
        self._speed = speed
        self._queue: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._running: dict[asyncio.Future[Result], tuple[Request, int]] = {}
        self._held_tokens = 0
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        await asyncio.sleep(self.start_s)
        capacity = self._speed.capacity_tokens
        return EngineInfo(context_tokens=capacity, capacity_tokens=capacity, device="simulated")

    async def generate(self, request: Request) -> Result:
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((request, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def sample(self) -> dict[str, float]:
        return {"running_requests": len(self._running)}

    async def _work(self) -> None:
        # What is sent at the same moment is in the queue then.
        await asyncio.sleep(0)
        while self._queue or self._running:
            if self._queue and self._fits(self._queue[0][0]):
                await self._prefill(*self._queue.popleft())
            else:
                await self._decode()

    def _fits(self, request: Request) -> bool:
        tokens = self._held_tokens + request.prompt_tokens + OUTPUT_TOKENS
        return not self._running or tokens <= self._speed.capacity_tokens

    async def _prefill(self, request: Request, answer: asyncio.Future[Result]) -> None:
        self._held_tokens += request.prompt_tokens + OUTPUT_TOKENS
        await asyncio.sleep(request.prompt_tokens / self._speed.prefill_tokens_per_s)
        self._running[answer] = (request, OUTPUT_TOKENS)

    async def _decode(self) -> None:
        step_s = self._speed.step_s + self._speed.running_s * len(self._running)
        await asyncio.sleep(self.STRIDE * step_s)
        self.busy_until_s = asyncio.get_running_loop().time()
        for answer, (request, left) in list(self._running.items()):
            if left > self.STRIDE:
                self._running[answer] = (request, left - self.STRIDE)
                continue
            del self._running[answer]
            self.num_answered += 1
            self._held_tokens -= request.prompt_tokens + OUTPUT_TOKENS
            answer.set_result(
                Result("", request.prompt_tokens, OUTPUT_TOKENS, 0, "length", 0.0, 0.0)
            )
