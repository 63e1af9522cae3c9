"""Stands in for SGLang where a test is about deaths, not answers: it starts in no time.

Like SGLang, it has a child process without which no request is ever answered.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

CHILD = ["sleep", "86421"]


class Engine:
    def __init__(self, token_s: float = 0.05, poison_tokens: int = 10**9, **arguments: Any) -> None:
        self._token_s, self._poison_tokens = token_s, poison_tokens
        self._child = subprocess.Popen(CHILD)
        self.port_args = SimpleNamespace(instance_id="standin")
        self.server_args = SimpleNamespace(device="none")
        capacity = {"max_total_num_tokens": 12000}
        self._scheduler_init_result = SimpleNamespace(scheduler_infos=[capacity])
        self.tokenizer_manager = SimpleNamespace(
            context_len=8192, get_internal_state=self._state, get_loads=self._loads
        )

    def get_all_child_pids(self) -> list[int]:
        return [self._child.pid]

    def shutdown(self) -> None:
        self._child.kill()

    async def async_generate(
        self, input_ids: list[int], sampling_params: dict[str, Any], stream: bool
    ) -> AsyncIterator[dict[str, Any]]:
        return self._answer(len(input_ids), sampling_params["max_new_tokens"])

    async def _answer(self, prompt_tokens: int, new_tokens: int) -> AsyncIterator[dict[str, Any]]:
        if prompt_tokens >= self._poison_tokens:
            self._child.kill()
        for n in range(1, new_tokens + 1):
            await asyncio.sleep(self._token_s)
            while self._child.poll() is not None:
                await asyncio.sleep(1)
            reason = {"type": "length"} if n == new_tokens else None
            meta = {"prompt_tokens": prompt_tokens, "completion_tokens": n, "cached_tokens": 0}
            yield {"text": "word " * n, "meta_info": meta | {"finish_reason": reason}}

    async def _state(self) -> list[dict[str, Any]]:
        return [{"memory_usage": {"weight": 0.1, "kvcache": 0.1, "token_capacity": 12000}}]

    async def _loads(self) -> list[Any]:
        return []
