"""The worker against a stand-in for ``sglang.Engine`` that keeps SGLang's shapes."""

import asyncio
import subprocess
import threading
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arkv_sglang.batch import worker as worker_module
from arkv_sglang.batch.types import EngineLost, Request, RequestFailed
from arkv_sglang.batch.worker import GIB, EngineWorker, telemetry

MEMORY = {"weight": 0.25, "kvcache": 1.0, "token_capacity": 1000}


class StandIn:
    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.loops: set[Any] = set()
        self.sampling: list[dict[str, Any]] = []
        self.arkv: dict[str, Any] = {}
        self.left_early = 0
        self.server_args = SimpleNamespace(device="cpu")
        self.port_args = SimpleNamespace(instance_id="standin")
        self._scheduler_init_result = SimpleNamespace(
            scheduler_infos=[{"max_total_num_tokens": 1000}]
        )
        self.tokenizer_manager = SimpleNamespace(
            context_len=8192, get_internal_state=self.state, get_loads=self.loads
        )

    def get_all_child_pids(self) -> list[int]:
        return [self.child.pid]

    async def state(self) -> list[dict[str, Any]]:
        self.loops.add(asyncio.get_running_loop())
        return [{"memory_usage": MEMORY, "arkv": self.arkv}]

    async def loads(self) -> list[Any]:
        return [SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, num_used_tokens=250)]

    async def async_generate(
        self, input_ids: list[int], sampling_params: dict[str, Any], stream: bool
    ) -> AsyncIterator[dict[str, Any]]:
        assert stream
        self.sampling.append(sampling_params)
        self.loops.add(asyncio.get_running_loop())
        return self.answer(input_ids)

    async def answer(self, input_ids: list[int]) -> AsyncIterator[dict[str, Any]]:
        if len(input_ids) > 100:
            raise ValueError("The input is longer\nthan the context.")
        for n in (1, 2):
            try:
                await asyncio.sleep(60 if input_ids == [14] else 0.01)
            except BaseException:
                # SGLang takes the request out of its scheduler here.
                self.left_early += 1
                raise
            reason = {"type": "length", "length": 2} if n == 2 else None
            if input_ids == [13]:
                reason = {"type": "abort", "message": "out of memory"}
            meta = {"prompt_tokens": len(input_ids), "completion_tokens": n, "cached_tokens": 1}
            meta |= {"finish_reason": reason, "arkv": {"rows_evicted": 9}}
            yield {"text": "a" * n, "meta_info": meta}

    def shutdown(self) -> None:
        self.child.kill()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


@pytest.fixture
def work(child: subprocess.Popen[bytes]) -> Iterator[EngineWorker]:
    """A worker that is stopped before its engine's child is killed, even when a test fails."""
    worker = EngineWorker(StandIn(child), {"max_new_tokens": 2}, {"sglang": "0"}, 60)
    yield worker
    worker.stop()


def ask(*ids: int) -> Request:
    return Request("d", array("I", ids))


def test_requests_of_many_threads_share_one_loop(work: EngineWorker) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work.generate, [ask(1, 2, 3)] * 8))
        sample = work.sample()
    assert len(work._engine.loops) == 1
    for result in results:
        assert (result.text, result.prompt_tokens, result.output_tokens) == ("aa", 3, 2)
        assert result.finish_reason == "length" and result.kv == {"rows_evicted": 9}
        # Not the stand-in's 10 ms: SGLang may have set a loop whose timers are a millisecond short.
        assert 0 < result.ttft_s < result.e2e_s
    assert sample["kv_original_bytes"] == GIB // 4 and sample["rss_bytes"] > 0
    info = work.info()
    assert (info.context_tokens, info.capacity_tokens, info.device) == (8192, 1000, "cpu")
    assert info.max_prompt_tokens(100) == 1000 - 100 - 8


def test_requests_of_one_prefix_wait_for_the_first_token_of_the_first(work: EngineWorker) -> None:
    started: list[int] = []
    answer = work._engine.answer

    async def noted(input_ids: list[int]) -> AsyncIterator[dict[str, Any]]:
        async for chunk in answer(input_ids):
            started.append(input_ids[0])
            yield chunk

    work._engine.answer = noted
    asked = [Request("d", array("I", [n]), prefix=3) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(work.generate, asked))) == 4
    # Two chunks each; nobody has one before the first has.
    assert len(started) == 8 and len(set(started[:2])) == 1 and len(set(started)) == 4


def test_a_request_overrides_the_sampling_of_the_job(child: subprocess.Popen[bytes]) -> None:
    worker = EngineWorker(StandIn(child), {"max_new_tokens": 2, "top_p": 0.5}, {}, 60)
    try:
        worker.generate(Request("d", array("I", [1]), {"max_new_tokens": 1, "sampling_seed": 7}))
        worker.generate(ask(1))
    finally:
        worker.stop()
    assert worker._engine.sampling == [
        {"max_new_tokens": 1, "top_p": 0.5, "sampling_seed": 7},
        {"max_new_tokens": 2, "top_p": 0.5},
    ]


def test_under_a_policy_the_arena_says_what_fits_and_not_the_slots(work: EngineWorker) -> None:
    work._engine.arkv = {"arkv_capacity_tokens": 300, "arkv_max_text_tokens": 700}
    info = work.info()
    # A policy compresses what its memory does not hold in bf16.
    assert info.capacity_tokens == 300 and info.max_prompt_tokens(100) == 700 - 100 - 8
    work.generate(ask(1))
    assert len(work._engine.loops) == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [((0,) * 101, "The input is longer than the context."), ((13,), "out of memory")],
)
def test_what_the_engine_refuses_fails_that_request(
    work: EngineWorker, ids: tuple[int, ...], message: str
) -> None:
    with pytest.raises(RequestFailed, match=f"^{message}$"):
        work.generate(ask(*ids))


def test_a_request_that_takes_too_long_is_taken_out_of_the_engine(
    child: subprocess.Popen[bytes],
) -> None:
    worker = EngineWorker(StandIn(child), {}, {}, 0.05)
    try:
        with pytest.raises(RequestFailed, match=r"^no answer within 0.05 s$"):
            worker.generate(ask(14))
        assert worker._engine.left_early == 1
        assert worker.generate(ask(1)).text == "aa"
    finally:
        worker.stop()


def test_who_waits_for_an_engine_hears_how_it_died(
    child: subprocess.Popen[bytes],
) -> None:
    died = threading.Event()
    worker = EngineWorker(StandIn(child), {}, {}, 60, on_death=died.set)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(worker.generate, ask(14)) for _ in range(2)]
        while len(worker._engine.sampling) < 2:
            time.sleep(0.01)
        child.kill()
        for call in (*waiting, pool.submit(worker.generate, ask(14))):
            with pytest.raises(EngineLost, match=r"^its sleep 60 was killed by SIGKILL$"):
                call.result(timeout=10)
        assert died.wait(5)
    worker.stop()


def test_a_file_that_sglang_would_leave_behind_is_gone_once_the_engine_is_up(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SHARED_MEMORY", tmp_path)
    for name in ("sglang_loads_standin_1a2b.shm", "sglang_loads_other_1a2b.shm"):
        (tmp_path / name).touch()
    worker = EngineWorker(StandIn(child), {}, {}, 60)
    worker.info()
    worker.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["sglang_loads_other_1a2b.shm"]


def test_a_dead_child_ends_the_process_and_a_stopped_one_does_not(
    child: subprocess.Popen[bytes],
) -> None:
    died = threading.Event()
    worker = EngineWorker(StandIn(child), {}, {}, 60, on_death=died.set)
    assert not died.wait(0.7)
    child.kill()
    assert died.wait(5)
    worker.stop()
    with subprocess.Popen(["sleep", "60"]) as other:
        died.clear()
        EngineWorker(StandIn(other), {}, {}, 60, on_death=died.set).stop()
        assert not died.wait(1)


def test_tiers_are_summed_over_their_owners() -> None:
    arkv = {
        "arkv_tree_original_bytes": 1,
        "arkv_prompts_original_bytes": 2,
        "arkv_views_original_bytes": 4,
        "arkv_views_quantized_bytes": 8,
        "arkv_running_requests": 3,
        "arkv_policy": "arkv",
    }
    values = telemetry({"memory_usage": MEMORY, "arkv": arkv}, None)
    assert values["kv_original_bytes"] == 7 and values["kv_quantized_bytes"] == 8
    assert values["kv_bytes"] == 15 and values["running_requests"] == 3
    assert values["weights_bytes"] == GIB // 4
    assert "arkv_policy" not in values
