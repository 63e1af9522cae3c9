"""Runs one ``sglang.Engine`` (handed in, never imported) for many threads at once.

The engine is an asyncio object whose blocking methods drive an event loop themselves, so nothing
of it may run on two loops: everything here runs on one loop in one background thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from arkv_sglang.batch.children import Child
from arkv_sglang.batch.last_words import LastWords
from arkv_sglang.batch.memory import device_used_bytes, tree_rss_bytes
from arkv_sglang.batch.prefix_gate import PrefixGate
from arkv_sglang.batch.types import EngineInfo, EngineLost, Request, RequestFailed, Result

GIB = 1 << 30
SHARED_MEMORY = Path("/dev/shm")
# Long enough for all who wait to hear of a death before this process ends, too.
NOTICE_S = 1.0
T = TypeVar("T")


class EngineWorker:
    """Blocking, thread-safe calls over one engine."""

    def __init__(
        self,
        engine: Any,
        sampling: Mapping[str, Any],
        versions: Mapping[str, str],
        request_timeout_s: float,
        on_death: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self._engine = engine
        self._sampling = dict(sampling)
        self._versions = versions
        self._request_timeout_s = request_timeout_s
        self._words = LastWords()
        self._on_death = on_death
        self._gate = PrefixGate()
        self._stopping = threading.Event()
        self._death: str | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True).start()
        threading.Thread(target=self._watch_children, name="engine-watch", daemon=True).start()

    def info(self) -> EngineInfo:
        scheduler = self._engine._scheduler_init_result.scheduler_infos[0]
        arkv = self._on_loop(self._first_state()).get("arkv") or {}
        return EngineInfo(
            context_tokens=self._engine.tokenizer_manager.context_len,
            # SGLang's own figure counts slots, of which a KV policy has more than the arena holds.
            capacity_tokens=arkv.get("arkv_capacity_tokens", scheduler["max_total_num_tokens"]),
            device=str(self._engine.server_args.device),
            versions=self._versions,
            max_text_tokens=arkv.get("arkv_max_text_tokens"),
        )

    def generate(self, request: Request) -> Result:
        """Run one request. Raises RequestFailed, EngineLost."""
        return self._on_loop(self._generate(request))

    def sample(self) -> dict[str, float]:
        """Telemetry now, all numbers, units in the names."""
        values = self._on_loop(self._read_state())
        values["rss_bytes"] = tree_rss_bytes()
        if (used := device_used_bytes()) is not None:
            values["device_used_bytes"] = used
        return values

    def stop(self) -> None:
        """Shut the engine and its processes down."""
        self._stopping.set()
        self._engine.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        call = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.add(call)
        if self._death is not None:
            call.cancel()
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise EngineLost(self._death) from None
        finally:
            self._calls.discard(call)

    async def _generate(self, request: Request) -> Result:
        async with self._gate.enter(request.prefix) as let_others_in:
            return await self._stream(request, let_others_in)

    async def _stream(self, request: Request, on_first_token: Callable[[], None]) -> Result:
        started = time.perf_counter()
        first = last = None
        try:
            stream = await self._engine.async_generate(
                input_ids=list(request.input_ids),
                sampling_params=self._sampling | dict(request.sampling),
                stream=True,
            )
            # Left early, the stream takes its request out of the engine.
            async with asyncio.timeout(self._request_timeout_s):
                async for chunk in stream:
                    if first is None:
                        first = time.perf_counter()
                        on_first_token()
                    last = chunk
        except TimeoutError:
            raise RequestFailed(f"no answer within {self._request_timeout_s:g} s") from None
        except ValueError as error:
            raise RequestFailed(_one_line(error)) from None
        if last is None or first is None:
            raise RequestFailed("the engine sent no answer")
        return _result(last, first - started, time.perf_counter() - started)

    async def _first_state(self) -> dict[str, Any]:
        loads = await self._engine.tokenizer_manager.get_loads()
        if len(loads) == 1:
            # Both ends have the file open by now. SGLang would leave it behind.
            name = f"sglang_loads_{self._engine.port_args.instance_id}_*.shm"
            for path in SHARED_MEMORY.glob(name):
                path.unlink(missing_ok=True)
        return await self._internal_state()

    async def _read_state(self) -> dict[str, float]:
        state = await self._internal_state()
        loads = await self._engine.tokenizer_manager.get_loads()
        return telemetry(state, loads[0] if loads else None)

    async def _internal_state(self) -> dict[str, Any]:
        states: list[dict[str, Any]] = await self._engine.tokenizer_manager.get_internal_state()
        return states[0]

    def _watch_children(self) -> None:
        """A dead scheduler leaves every request waiting for ever, so the process must die too."""
        children = [Child(pid) for pid in self._engine.get_all_child_pids()]
        while not self._stopping.wait(0.5):
            dead = next((child for child in children if not child.is_alive), None)
            if dead is not None:
                if not self._stopping.is_set():
                    self._die(dead)
                return

    def _die(self, child: Child) -> None:
        if killed_by := child.killed_by:
            self._death = f"its {child} was killed by {killed_by}"
        elif raised := self._words.exception():
            self._death = f"its {child} ended: {raised}"
        else:
            self._death = f"its {child} ended"
        for call in list(self._calls):
            call.cancel()
        time.sleep(NOTICE_S)
        self._on_death()


def telemetry(state: Mapping[str, Any], load: Any) -> dict[str, float]:
    """Flat numbers from an engine's internal state and its load snapshot."""
    memory = state["memory_usage"]
    values: dict[str, float] = {
        "weights_bytes": int(memory["weight"] * GIB),
        "kv_pool_bytes": int(memory["kvcache"] * GIB),
    }
    if load is not None:
        values["running_requests"] = load.num_running_reqs
        values["waiting_requests"] = load.num_waiting_reqs
    arkv = state.get("arkv")
    if arkv:
        values |= {key: value for key, value in arkv.items() if isinstance(value, int | float)}
        if "arkv_running_requests" in arkv:
            values["running_requests"] = arkv["arkv_running_requests"]
        for tier in ("original", "quantized"):
            owners = (f"arkv_{owner}_{tier}_bytes" for owner in ("tree", "prompts", "views"))
            values[f"kv_{tier}_bytes"] = sum(arkv.get(owner, 0) for owner in owners)
    elif load is not None:
        # Stock SGLang: every row is bf16, and what is used is known in tokens only.
        per_token = values["kv_pool_bytes"] / max(1, memory["token_capacity"])
        values["kv_original_bytes"] = int(load.num_used_tokens * per_token)
        values["kv_quantized_bytes"] = 0
    if "kv_original_bytes" in values:
        values["kv_bytes"] = values["kv_original_bytes"] + values["kv_quantized_bytes"]
    return values


def _result(chunk: Mapping[str, Any], ttft_s: float, e2e_s: float) -> Result:
    meta = chunk["meta_info"]
    reason = meta["finish_reason"] or {"type": "unknown"}
    if reason["type"] == "abort":
        raise RequestFailed(_one_line(reason.get("message") or "the engine aborted the request"))
    return Result(
        text=chunk["text"],
        prompt_tokens=meta["prompt_tokens"],
        output_tokens=meta["completion_tokens"],
        cached_tokens=meta["cached_tokens"],
        finish_reason=reason["type"],
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        kv=dict(meta.get("arkv") or {}),
    )


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
