"""A random load in a real engine: what is taken in is served, and nothing is left behind.

Strict checks of SGLang run at every step and when idle; the store is checked every few steps.
"""

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_probes import STRICT, Watch
from idle_allocator import IdleAllocator
from tiny_models import GEOMETRY, TINY, tiny_model

from arkv_sglang.engine.launch import flush
from arkv_sglang.engine.pool import PoolSize

CONTEXT = TINY["max_position_embeddings"]
LONGEST, MOST_NEW = 1400, 40
REQUEST_TIMEOUT_S = 120
REFUSALS = ("exceeds the KV memory budget", "longer than the model's context length")


@dataclass(frozen=True)
class Case:
    """``capacity``: tokens that the arena holds in bf16; ``at_once``: requests in flight."""

    policy: str
    config: dict[str, Any]
    capacity: int
    chunk: int
    at_once: int
    overlap: bool = False


CASES = {
    "arkv": Case("arkv", {"budget": 0.25}, 3000, 512, 48, overlap=True),
    # The least that an engine starts on: one chunk, sinks, window and one token.
    "smallest": Case("arkv", {"budget": 0.5, "min_tokens": 72}, 128 + 4 + 32 + 1, 128, 24),
    "pressure": Case("arkv", {"budget": 0.25, "when": "pressure"}, 3000, 512, 48, overlap=True),
    "cap": Case("arkv-paper", {"budget": 160, "min_tokens": 64}, 1600, 256, 32),
}


@dataclass(frozen=True)
class Request:
    """One request of the load. ``follows``: the request whose text it goes on with."""

    ids: list[int]
    new: int
    params: dict[str, Any]
    logprobs: dict[str, Any]
    abort_after_s: float | None
    follows: int | None


def random_load(num_requests: int, capacity: int, seed: int) -> list[Request]:
    """Lengths of any size up to the arena's and some beyond; half of the prompts share a prefix."""
    draw = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [draw.randrange(1, TINY["vocab_size"]) for _ in range(n)]

    longest = min(capacity, LONGEST)
    prefixes = [tokens(draw.randint(1, longest * 3 // 4)) for _ in range(6)]
    # From what is compressed chunk by chunk to what is more than the model's context. In turn, so
    # that a short load has some of each.
    long = itertools.cycle(
        [
            (CONTEXT, CONTEXT + 9),
            (capacity, capacity + LONGEST),
            (capacity, CONTEXT - MOST_NEW - 10),
        ]
    )
    load = []
    for index in range(num_requests):
        length = draw.randint(1, longest)
        if draw.random() < 0.05:
            length = draw.randint(*next(long))
        kind = draw.random()
        prefix = draw.choice(prefixes) if kind < 0.35 else []
        follows = draw.randrange(index) if index and kind > 0.85 else None
        if follows is not None:
            length = draw.randint(1, longest // 6)
        load.append(
            Request(
                ids=(prefix + tokens(max(length - len(prefix), draw.randint(1, 8)))),
                new=draw.randint(1, MOST_NEW),
                # Not min_new_tokens: SGLang asks the tokenizer for it, and there is none.
                params={
                    "temperature": draw.choice([0, 1.0]),
                    "ignore_eos": draw.random() < 0.6,
                },
                logprobs=draw.choice(
                    [
                        {},
                        {},
                        {"return_logprob": True},
                        {"return_logprob": True, "logprob_start_len": 0},
                    ]
                ),
                abort_after_s=draw.choice([0, 0.01, 0.1, 0.5, 1, 2])
                if draw.random() < 0.1
                else None,
                follows=follows,
            )
        )
    return load


class Load:
    """Sends requests, so many at once, and says of each whether it ended as it must."""

    def __init__(self, engine: Any, case: Case, size: PoolSize, watch: dict[str, Any]) -> None:
        self.engine = engine
        self.at_once = case.at_once
        self.oracle = IdleAllocator(GEOMETRY, size, case.policy, case.config)
        self.oracle.controller.chunk_tokens = case.chunk
        self.watch = watch
        self.texts: dict[int, list[int]] = {}
        self.ends: Counter[str] = Counter()
        self.retractions = 0
        self.faults: list[str] = []

    def run(self, load: list[Request]) -> None:
        self.engine.loop.run_until_complete(self._run(load))

    async def _run(self, load: list[Request]) -> None:
        queue = iter(enumerate(load))

        async def client() -> None:
            for index, request in queue:
                if self.faults:
                    return
                try:
                    await asyncio.wait_for(self._serve(index, request), REQUEST_TIMEOUT_S)
                except TimeoutError:
                    self.faults.append(f"request {index} hangs")

        await asyncio.gather(*(client() for _ in range(self.at_once)))

    async def _serve(self, index: int, request: Request) -> None:
        ids = self.texts.get(request.follows, []) + request.ids
        new = None
        if len(ids) < CONTEXT:
            new = self.oracle.taken_in(len(ids), request.new)
        # SGLang aborts whatever begins with the name it is given, so names have one length.
        name = f"load-{index:06}"
        stream = await self.engine.async_generate(
            input_ids=ids,
            sampling_params={
                **request.params,
                "max_new_tokens": request.new,
                "custom_params": self.watch,
            },
            custom_logit_processor=Watch.to_str(),
            stream=True,
            rid=name,
            **request.logprobs,
        )
        if request.abort_after_s is not None:
            asyncio.get_running_loop().call_later(
                request.abort_after_s, self.engine.tokenizer_manager.abort_request, name
            )
        last: dict[str, Any] = {}
        refused = ""
        try:
            async for last in stream:  # noqa: B007
                pass
        except ValueError as error:
            refused = str(error)
        found = last.get("meta_info", {})
        reason = found.get("finish_reason") or {"type": "none"}
        if reason["type"] == "abort" and reason.get("status_code") == 400:
            refused = reason["message"]
        count = len(last.get("output_ids", []))
        self.retractions += found.get("num_retractions") or 0
        end, fault = _judge(request, new, count, reason, refused)
        if end == "served" and request.logprobs:
            scored = len(found["output_token_logprobs"])
            fault = "" if scored == count else f"{scored} logprobs for {count} tokens"
        self.ends[end] += 1
        if fault:
            self.faults.append(f"request {index} of {len(ids)} + {request.new} tokens: {fault}")
        if end == "served":
            self.texts[index] = (ids + last["output_ids"])[:LONGEST]


def _judge(
    request: Request, new: int | None, count: int, reason: dict[str, Any], refused: str
) -> tuple[str, str]:
    """How the request ended, and what is wrong with that, if anything."""
    if refused:
        wanted = new is None and any(reason in refused for reason in REFUSALS)
        return "refused", "" if wanted else f"refused ({refused}), but {new} tokens would do"
    if reason["type"] == "abort":
        asked = request.abort_after_s is not None
        return "aborted", "" if asked else f"ended by {reason}"
    if new is None:
        return "served", f"{count} tokens of a request that does not fit"
    if reason["type"] == "stop":
        early = not request.params["ignore_eos"] and count <= max(new, 1)
        return "served", "" if early else f"stopped after {count} tokens"
    whole = reason["type"] == "length" and count == max(new, 1)
    return "served", "" if whole else f"{count} tokens of {new}, ended by {reason}"


def size_of(capacity: int) -> tuple[int, PoolSize]:
    """The least ``max_total_tokens`` whose arena holds ``capacity`` tokens."""
    tokens = capacity
    while True:
        size = PoolSize.from_tokens(tokens, CONTEXT, GEOMETRY)
        if size.num_units >= capacity * GEOMETRY.token_units:
            return tokens, size
        tokens += 1


def figures(engine: Any) -> dict[str, int]:
    return engine.get_server_info()["internal_states"][0]["arkv"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model(Path(tmp_path_factory.mktemp("tiny")))


SOAK = [pytest.mark.soak, pytest.mark.timeout(7200)]


@pytest.mark.parametrize(
    ("name", "num_requests"),
    [
        ("smallest", 100),
        ("pressure", 100),
        # Requests run almost one at a time on the smallest.
        pytest.param("smallest", 1000, marks=SOAK),
        *(pytest.param(name, 3000, marks=SOAK) for name in ("arkv", "pressure", "cap")),
    ],
)
def test_all_are_served_and_nothing_is_left(
    one_engine, model, tmp_path, monkeypatch, name, num_requests
):
    case = CASES[name]
    tokens, size = size_of(case.capacity)
    # Threads of so small a model mostly wait for each other, for long if cores are shared.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    engine = one_engine.start(
        case.policy,
        case.config,
        model_path=model,
        skip_tokenizer_init=True,
        max_total_tokens=tokens,
        chunked_prefill_size=case.chunk,
        disable_overlap_schedule=not case.overlap,
    )
    path = tmp_path / "watch.txt"
    load = Load(engine, case, size, {"path": str(path), "every": 20})
    load.run(random_load(num_requests, case.capacity, seed=num_requests))
    found = figures(engine)
    assert not load.faults, f"{load.faults[:5]}; {dict(load.ends)}; {found}"
    assert load.ends.total() == num_requests
    print(f"{name}: {dict(load.ends)}, {load.retractions} retractions, {found}")
    assert path.read_text().splitlines() == [f"{flag}=1" for flag in STRICT]

    # The load must have been one: of all ends, and with views made, outgrown and taken over.
    assert load.ends["served"] > num_requests / 2
    assert load.ends["refused"] and load.ends["aborted"]
    assert found["arkv_capacity_tokens"] == case.capacity
    for what in ("views_created", "views_taken_over", "tokens_evicted"):
        assert found[f"arkv_{what}_total"] > 0

    flush(engine)
    found = figures(engine)
    for what in ("running_requests", "views_requests", "views_waiting_requests"):
        assert found[f"arkv_{what}"] == 0
    for owner in ("prompts", "views", "tree"):
        assert found[f"arkv_{owner}_original_bytes"] == 0
        assert found[f"arkv_{owner}_quantized_bytes"] == 0
    assert found["arkv_free_bytes"] == found["arkv_arena_bytes"]
