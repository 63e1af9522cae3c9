"""One arm of a comparison: an engine, a batch of prompts, and what it measured."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arkv_sglang.engine.launch import flush, running
from arkv_sglang.engine.running import CountRunning

NEVER = 1 << 30


@dataclass(frozen=True)
class Arm:
    """A name and the policy settings of one engine."""

    name: str
    policy: str
    config: dict[str, Any] | None


@dataclass(frozen=True)
class Result:
    """Figures of one run. Prefill and decode overlap, so their rates are over the whole run."""

    arm: str
    documents: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    documents_per_min: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_running_requests: int


def default_arms(budget: float) -> list[Arm]:
    """Stock; our backend that never compresses; `arkv` at ``budget``."""
    return [
        Arm("none", "none", None),
        Arm("uncompressed", "arkv", {"budget": budget, "min_tokens": NEVER}),
        Arm(f"arkv {budget:g}", "arkv", {"budget": budget}),
    ]


def run(
    arm: Arm,
    prompts: list[list[int]],
    new_tokens: int,
    scratch: Path,
    repeats: int,
    **engine: Any,
) -> list[Result]:
    """Serve ``prompts`` together, ``repeats`` times on a flushed cache, after one short warm-up."""
    settings = {"enable_custom_logit_processor": True, "log_level": "error"} | engine
    with running(arm.policy, arm.config, **settings) as started:
        started.generate(input_ids=prompts[0][:64], sampling_params={"max_new_tokens": 4})
        found = []
        for repeat in range(repeats):
            flush(started)
            count = scratch / f"{arm.name}-{repeat}"
            params = {
                "temperature": 0,
                "max_new_tokens": new_tokens,
                "ignore_eos": True,
                "custom_params": {"path": str(count)},
            }
            begun = time.perf_counter()
            outs = started.generate(
                input_ids=prompts,
                sampling_params=params,
                custom_logit_processor=CountRunning.to_str(),
            )
            wall = time.perf_counter() - begun
            found.append(_result(arm, outs, wall, int(count.read_text())))
        return found


def _result(arm: Arm, outs: list[dict[str, Any]], wall: float, peak: int) -> Result:
    meta = [out["meta_info"] for out in outs]
    prompt_tokens = sum(each["prompt_tokens"] for each in meta)
    output_tokens = sum(each["completion_tokens"] for each in meta)
    return Result(
        arm=arm.name,
        documents=len(outs),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        wall_s=round(wall, 2),
        documents_per_min=round(60 * len(outs) / wall, 2),
        prefill_tokens_per_s=round(prompt_tokens / wall, 1),
        decode_tokens_per_s=round(output_tokens / wall, 1),
        peak_running_requests=peak,
    )


def as_records(results: list[Result]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]
