"""Eviction policies of the prefix tree on one trace: ``python -m arkv_sglang.bench.replay``.

The tree, the store and the allocator are the engine's own, and a request takes the engine's steps:
match, lock, reclaim, allocate, publish, score, unlock. There is no model: a row is a place without
numbers, and attention is drawn from `docs/results/attention_profile.json`, which `record_attention`
took from real prompts, and stretched over the request's parts. Each prompt is prefilled in one
chunk. One request comes per second and holds its prompt until the next comes, as one does that is
compressed at its prompt's end; with ``--running 8``, until the eighth after it. Views are not made:
bytes that they would hold are not part of the arena here.

Every policy has the same arena: 2, 5 and 10 % of the trace's unique tokens in bf16.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sglang.srt.managers.schedule_batch import ReqKvInfo

from arkv_sglang.bench.profile import load_profiles, stretched
from arkv_sglang.bench.trace import LONG_SCANS, SHORT_SCANS, Request, Trace, build_trace
from arkv_sglang.cache import heat
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry
from arkv_sglang.engine.controller import Controller
from arkv_sglang.engine.standalone import StandaloneParts, standalone_pool

GEOMETRY = Geometry(num_layers=2, num_kv_heads=1, head_dim=8)
SIZES = (0.02, 0.05, 0.10)
BASELINES = ("lru", "lfu", "slru")
HEAT, TIERING = "heat", "heat+tiering"
POLICIES = (*BASELINES, HEAT, TIERING)
SECONDS_PER_REQUEST = 1.0
TRACES = {"short scans": SHORT_SCANS, "long scans": LONG_SCANS}
PROFILES = Path(__file__).parents[2] / "docs" / "results" / "attention_profile.json"


@dataclass
class ReplayRequest:
    """The fields of SGLang's `Req` that the tree reads."""

    full_untruncated_fill_ids: Any
    attention: torch.Tensor
    kv: ReqKvInfo = field(default_factory=ReqKvInfo)
    lock: Any = None
    last_node: Any = None
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int = 0

    @property
    def origin_input_ids(self) -> Any:
        return self.full_untruncated_fill_ids

    def finished(self) -> bool:
        return False


class ReplayController(Controller):
    """The engine's controller, with recorded attention in place of a model's."""

    def finish_prompt(self, req: Any, slots: torch.Tensor) -> torch.Tensor | None:
        attention: torch.Tensor = req.attention
        return attention[: len(slots)]


class Replay(StandaloneParts):
    """One policy on one arena of ``num_tokens`` bf16 tokens, ``num_running`` requests at once."""

    def __init__(
        self, policy: str, num_tokens: int, context_len: int, num_running: int = 1
    ) -> None:
        config = ArkvConfig()
        pool = standalone_pool(config, GEOMETRY, num_slots=3 * num_tokens, capacity=num_tokens)
        pool.controller = ReplayController(config, pool.store)
        pool.controller.demotes = policy == TIERING
        super().__init__(
            pool,
            num_requests=num_running,
            context_len=context_len,
            eviction_policy=policy if policy in BASELINES else None,
        )
        self.tree.clock = lambda: self.now
        self.now = 0.0
        self.num_running = num_running
        self.running: deque[ReplayRequest] = deque()

    def serve(self, request: Request, attention: torch.Tensor) -> int:
        """Run one request; returns how many of its tokens were found in the tree."""
        self.now += SECONDS_PER_REQUEST
        if len(self.running) == self.num_running:
            self.release(self.running.popleft())
        req = ReplayRequest(request.token_ids, attention)
        # SGLang computes at least the last token of a prompt.
        matched = self.match(req, recomputed=1)
        num_tokens = matched + self._bind_what_fits(req, len(request.token_ids) - matched)
        req.full_untruncated_fill_ids = request.token_ids[:num_tokens]
        self.tree.checkpoint(req, up_to=num_tokens)
        self.running.append(req)
        return matched

    def _bind_what_fits(self, req: ReplayRequest, num_new: int) -> int:
        self.allocator.evict_to_free_tokens(self.tree, num_new)
        fits = min(num_new, self.store.free_units // self.allocator.token_units)
        self.bind(req, fits)
        return fits


@dataclass(frozen=True)
class Result:
    """Figures of one policy at one size. Ratios are in [0, 1]."""

    policy: str
    size_ratio: float
    arena_tokens: int
    hit_ratio: float
    document_hit_ratio: float
    instruction_hit_ratio: float
    tokens_evicted: int
    nodes_demoted: int


def attention_of(trace: Trace, profiles_path: Path = PROFILES) -> list[torch.Tensor]:
    """Attention fp32 [T] of each request: a recorded profile, drawn with the trace's seed."""
    profiles = load_profiles(profiles_path)
    rng = np.random.default_rng(trace.settings.seed)
    return [
        stretched(profiles[rng.integers(len(profiles))].mass, request.lengths)
        for request in trace.requests
    ]


def replay(
    trace: Trace,
    attention: Sequence[torch.Tensor],
    policy: str,
    size_ratio: float,
    num_running: int = 1,
) -> Result:
    """Serve the whole trace. The arena holds ``size_ratio`` of its unique tokens in bf16."""
    arena_tokens = int(size_ratio * trace.num_unique_tokens)
    context_len = max(len(request.token_ids) for request in trace.requests)
    run = Replay(policy, arena_tokens, context_len, num_running)
    found = np.array([run.serve(*each) for each in zip(trace.requests, attention, strict=True)])
    first = trace.settings.instruction_len
    documents = sum(request.lengths[1] for request in trace.requests)
    return Result(
        policy=policy,
        size_ratio=size_ratio,
        arena_tokens=run.allocator.capacity_tokens,
        hit_ratio=float(found.sum() / trace.num_tokens),
        document_hit_ratio=float((found - first).clip(0).sum() / documents),
        instruction_hit_ratio=float((found >= first).mean()),
        tokens_evicted=run.tree.tokens_evicted_total,
        nodes_demoted=run.tree.nodes_demoted_total,
    )


def heat_over_best_baseline(found: Mapping[str, Result]) -> float:
    """Hit ratio of the heavy-hitter score over the best other's; ``found`` is by policy."""
    return found[HEAT].hit_ratio / max(found[name].hit_ratio for name in BASELINES)


def tiering_over_heat(found: Mapping[str, Result]) -> float:
    return found[TIERING].hit_ratio / found[HEAT].hit_ratio


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    cells = []
    for name, settings in TRACES.items():
        for seed in range(options.seeds):
            trace = build_trace(replace(settings, seed=seed, num_requests=options.requests))
            attention = attention_of(trace, options.profiles)
            for size in SIZES:
                found = {
                    policy: replay(trace, attention, policy, size, options.running)
                    for policy in POLICIES
                }
                cells.append(_cell(name, trace, size, found))
                print(json.dumps(cells[-1]), file=sys.stderr)
    report = {
        "traces": {name: asdict(settings) for name, settings in TRACES.items()},
        "requests": options.requests,
        "requests_running": options.running,
        "seconds_per_request": SECONDS_PER_REQUEST,
        "half_life_sec": heat.HALF_LIFE_SEC,
        "results": cells,
    }
    _show(cells)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench.replay")
    parser.add_argument("--requests", type=int, default=SHORT_SCANS.num_requests)
    parser.add_argument("--seeds", type=int, default=5, help="how many traces of each kind")
    parser.add_argument("--running", type=int, default=1, help="requests at once")
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="recorded attention")
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    return parser.parse_args()


def _cell(name: str, trace: Trace, size: float, found: Mapping[str, Result]) -> dict[str, Any]:
    """One trace at one size, as a JSON record."""
    return {
        "trace": name,
        "seed": trace.settings.seed,
        "size_ratio": size,
        "prompt_tokens": trace.num_tokens,
        "unique_tokens": trace.num_unique_tokens,
        "heat_over_best_baseline": round(heat_over_best_baseline(found), 4),
        "tiering_over_heat": round(tiering_over_heat(found), 4),
        "policies": [_rounded(asdict(result)) for result in found.values()],
    }


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}


def _show(cells: Sequence[dict[str, Any]]) -> None:
    """Hit ratios as means over the seeds, and the ratios of them with the worst seed's."""
    table = Table("trace", "arena", *POLICIES, "heat / best (least)", "tiering / heat (least)")
    rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for cell in cells:
        rows.setdefault((cell["trace"], cell["size_ratio"]), []).append(cell)
    for (name, size), group in rows.items():
        hits = np.mean([[each["hit_ratio"] for each in cell["policies"]] for cell in group], 0)
        ratios = [
            [cell[key] for cell in group]
            for key in ("heat_over_best_baseline", "tiering_over_heat")
        ]
        table.add_row(
            name,
            f"{size:.0%}",
            *(f"{hit:.3f}" for hit in hits),
            *(f"{np.mean(each):.3f} ({min(each):.3f})" for each in ratios),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
