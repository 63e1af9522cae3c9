"""One SGLang engine in a process of its own, as a Ray actor."""

from __future__ import annotations

from typing import Any

import ray

from arkv_sglang.batch.run import package_versions
from arkv_sglang.batch.types import EngineInfo, Request, Result


class EngineActor:
    """One ``sglang.Engine``. A plain class with threads, not an async actor: SGLang must be started
    in the main thread, where Ray runs ``__init__`` of such an actor alone."""

    def __init__(self, engine: dict[str, Any], sampling: dict[str, Any]) -> None:
        import sglang

        from arkv_sglang.batch.worker import EngineWorker

        # Load figures after every step, not every few, so that telemetry speaks of now.
        engine = {"load_snapshot_publish_interval": 1} | engine
        self._worker = EngineWorker(sglang.Engine(**engine), sampling, package_versions())

    @ray.method(concurrency_group="generate")
    def generate(self, request: Request) -> Result:
        return self._worker.generate(request)

    @ray.method(concurrency_group="telemetry")
    def info(self) -> EngineInfo:
        return self._worker.info()

    @ray.method(concurrency_group="telemetry")
    def sample(self) -> dict[str, float]:
        return self._worker.sample()

    @ray.method(concurrency_group="telemetry")
    def stop(self) -> None:
        self._worker.stop()
