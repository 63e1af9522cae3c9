"""Where Ray puts the engines, and with what."""

from __future__ import annotations

import math
from typing import Any

import ray

from arkv_sglang.batch.config import EnginesConfig


def actor_options(engines: EnginesConfig) -> dict[str, Any]:
    """Ray's options for one engine."""
    env = {}
    if not engines.num_gpus:
        # Ray gives a process without GPUs sight of all of them, and one thread.
        threads = max(1, math.floor(engines.num_cpus))
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(threads)}
    return {
        "num_gpus": engines.num_gpus,
        "num_cpus": engines.num_cpus,
        "max_restarts": engines.max_restarts,
        # A request may kill its engine: the scheduler decides who tries it again, and when.
        "max_task_retries": 0,
        "concurrency_groups": {"generate": engines.window_docs, "telemetry": 2},
        "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": env | engines.env},
    }


def missing_resources(engines: EnginesConfig) -> list[str]:
    """One sentence for each kind of resource that the cluster has too little of now."""
    have = ray.cluster_resources()
    wanted = {"GPU": engines.num_gpus, "CPU": engines.num_cpus}
    return [
        f"{engines.count} engines need {each * engines.count:g} {kind} and the cluster has "
        f"{have.get(kind, 0):g} now; some engines will wait for more nodes"
        for kind, each in wanted.items()
        if each * engines.count > have.get(kind, 0)
    ]
