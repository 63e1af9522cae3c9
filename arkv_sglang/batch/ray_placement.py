"""Where Ray puts the engines, and with what."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from arkv_sglang.batch.config import EnginesConfig

POLL_S = 0.5


class Place:
    """What one engine needs, all of it on one node, reserved for as long as the engine is there."""

    def __init__(self, engines: EnginesConfig) -> None:
        self._engines = engines
        self._group: PlacementGroup = placement_group([resources(engines)], strategy="STRICT_PACK")

    def options(self) -> dict[str, Any]:
        """Ray's options for the engine that is to run here."""
        engines = self._engines
        return {
            "num_gpus": engines.num_gpus,
            "num_cpus": engines.num_cpus,
            # A request may kill its engine: the scheduler decides who tries it again, and when,
            # and a new start may be better off on another node.
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {"generate": engines.window_docs, "telemetry": 2},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group),
            "runtime_env": {"env_vars": environment(engines)},
        }

    async def found(self) -> None:
        """Wait until a node has room for it."""
        while placement_group_table(self._group)["state"] != "CREATED":
            await asyncio.sleep(POLL_S)

    def give_up(self) -> None:
        """Whatever still runs here is killed."""
        remove_placement_group(self._group)


def resources(engines: EnginesConfig) -> dict[str, float]:
    needed = {"GPU": engines.num_gpus, "CPU": engines.num_cpus}
    return {kind: count for kind, count in needed.items() if count}


def environment(engines: EnginesConfig) -> dict[str, str]:
    env = {}
    if not engines.num_gpus:
        # Ray gives a process without GPUs sight of all of them, and one thread.
        threads = max(1, math.floor(engines.num_cpus))
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}
    return env | engines.env


def described(engines: EnginesConfig) -> str:
    """What an engine needs, in words: "1 GPU and 4 CPU"."""
    return " and ".join(f"{count:g} {kind}" for kind, count in resources(engines).items())


def missing_resources(engines: EnginesConfig) -> str | None:
    """A sentence, if the cluster as it is now has no room for all engines."""
    needed = resources(engines)
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(
        min(math.floor(node.get(kind, 0) / count + 1e-6) for kind, count in needed.items())
        for node in alive
    )
    if room >= engines.count:
        return None
    return (
        f"the cluster has room for {room} of {engines.count} engines now, each of which needs "
        f"{described(engines)} on one node; the others wait for more nodes"
    )
