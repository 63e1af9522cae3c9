"""One arm of a comparison: an engine, a batch of prompts, and what it measured."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from arkv_sglang.engine.launch import flush, running
from arkv_sglang.engine.running import CountRunning, Running
from arkv_sglang.report.plot_arena import OWNERS

NEVER = 1 << 30
SAMPLE_S = 2.0


@dataclass(frozen=True)
class Arm:
    """A name and the policy settings of one engine."""

    name: str
    policy: str
    config: dict[str, Any] | None


@dataclass(frozen=True)
class Result:
    """Figures of one run. Prefill and decode overlap, so their rates are over the whole run.

    ``cpu_s``: processor time of the engine's processes; other work on the machine changes it less.
    Running requests are of decode steps. ``hit_rate``: cached over all prompt tokens. Under a
    policy ``bytes_over_time`` has a line of arena bytes by owner and tier every two seconds, and
    ``overhead_ratio`` the overhead at its largest over the arena.
    """

    arm: str
    documents: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    cpu_s: float
    documents_per_min: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_running_requests: int
    mean_running_requests: float
    retractions: int
    hit_rate: float
    overhead_ratio: float | None
    bytes_over_time: list[dict[str, float]]


def default_arms(budget: float) -> list[Arm]:
    """Stock; our backend that never compresses; `arkv` at ``budget``."""
    return [
        Arm("none", "none", None),
        uncompressed(),
        Arm(f"arkv {budget:g}", "arkv", {"budget": budget}),
    ]


def uncompressed() -> Arm:
    """Our backend and pool, without compression."""
    return Arm("uncompressed", "arkv", {"min_tokens": NEVER})


def run(
    arm: Arm, prompts: list[list[int]], new_tokens: int, scratch: Path, **engine: Any
) -> Result:
    """Serve ``prompts`` together on a new engine, after one short warm-up. What it writes into
    ``scratch`` goes when it has been read."""
    settings = {"enable_custom_logit_processor": True, "log_level": "error"} | engine
    count = scratch / arm.name
    count.unlink(missing_ok=True)
    with running(arm.policy, arm.config, **settings) as started:
        started.generate(input_ids=prompts[0][:64], sampling_params={"max_new_tokens": 4})
        flush(started)
        params = {
            "temperature": 0,
            "max_new_tokens": new_tokens,
            "ignore_eos": True,
            "custom_params": {"path": str(count)},
        }
        begun, cpu_begun = time.perf_counter(), _cpu_s()
        outs, samples = started.loop.run_until_complete(_serve(started, prompts, params))
        wall_s, cpu_s = time.perf_counter() - begun, _cpu_s() - cpu_begun
    return _result(arm, outs, wall_s, cpu_s, Running.read(count), samples)


def _cpu_s() -> float:
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def _serve(
    engine: Any, prompts: list[list[int]], params: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """All answers, and the engine's figures every two seconds meanwhile (none from stock)."""
    samples: list[dict[str, float]] = []
    begun = time.perf_counter()

    async def sample() -> None:
        while True:
            state = (await engine.tokenizer_manager.get_internal_state())[0]
            if "arkv" in state:
                samples.append({"s": round(time.perf_counter() - begun, 1)} | state["arkv"])
            await asyncio.sleep(SAMPLE_S)

    sampler = asyncio.create_task(sample())
    try:
        outs = await engine.async_generate(
            input_ids=prompts,
            sampling_params=params,
            custom_logit_processor=CountRunning.to_str(),
        )
    finally:
        sampler.cancel()
    return outs, samples


def _result(
    arm: Arm,
    outs: list[dict[str, Any]],
    wall_s: float,
    cpu_s: float,
    count: Running,
    samples: list[dict[str, float]],
) -> Result:
    meta = [out["meta_info"] for out in outs]
    prompt_tokens = sum(each["prompt_tokens"] for each in meta)
    output_tokens = sum(each["completion_tokens"] for each in meta)
    cached_tokens = sum(each["cached_tokens"] for each in meta)
    overhead = [each["arkv_overhead_bytes"] / each["arkv_arena_bytes"] for each in samples]
    return Result(
        arm=arm.name,
        documents=len(outs),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        wall_s=round(wall_s, 2),
        cpu_s=round(cpu_s, 2),
        documents_per_min=round(60 * len(outs) / wall_s, 2),
        prefill_tokens_per_s=round(prompt_tokens / wall_s, 1),
        decode_tokens_per_s=round(output_tokens / wall_s, 1),
        peak_running_requests=count.peak,
        mean_running_requests=round(count.mean, 2),
        retractions=sum(each.get("num_retractions") or 0 for each in meta),
        hit_rate=round(cached_tokens / prompt_tokens, 4),
        overhead_ratio=round(max(overhead), 4) if overhead else None,
        bytes_over_time=[
            {"s": each["s"]} | {owner: each[f"arkv_{owner}_bytes"] for owner in OWNERS}
            for each in samples
        ],
    )


def as_records(results: list[Result]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]
