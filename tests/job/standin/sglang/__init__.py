"""Stands in for SGLang where a test is about deaths, not answers: it starts in no time.

Like SGLang, it has a child process without which no request is ever answered.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

CHILD = ["sleep", "86421"]
PR_SET_PDEATHSIG = 1


def seen_by(environment: Mapping[str, str]) -> str:
    return environment.get("CUDA_VISIBLE_DEVICES", "all")


def environment_of_a_child() -> Mapping[str, str]:
    printed = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)


def die_with_parent() -> None:
    """As the processes of SGLang do, so that none outlives an engine that nobody can stop."""
    ctypes.CDLL("libc.so.6").prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Engine:
    def __init__(
        self,
        token_s: float = 0.05,
        poison_tokens: int = 10**9,
        raises: str | None = None,
        hangs: bool = False,
        starts: str | None = None,
        **arguments: Any,
    ) -> None:
        if starts is not None:
            with open(starts, "a") as file:
                print(seen_by(os.environ), seen_by(environment_of_a_child()), file=file)
        if raises is not None:
            raise ValueError(raises)
        if hangs:
            time.sleep(3600)
        self._token_s, self._poison_tokens = token_s, poison_tokens
        self._child = subprocess.Popen(CHILD, preexec_fn=die_with_parent)
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
