"""The scheduler's view of engines that run as Ray actors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.ray_actor import EngineActor
from arkv_sglang.batch.ray_placement import actor_options
from arkv_sglang.batch.types import (
    BatchError,
    EngineInfo,
    EngineLost,
    Request,
    RequestFailed,
    Result,
)

STOP_S = 20


class RayEngine:
    """One actor: Ray's errors become the batch package's."""

    def __init__(self, name: str, config: JobConfig) -> None:
        self.name = name
        self._start_timeout_s = config.engines.start_timeout_s
        actor = ray.remote(**actor_options(config.engines))(EngineActor)
        self._actor = actor.remote(config.engine, config.sampling.model_dump())

    async def start(self) -> EngineInfo:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    try:
                        return await self._actor.info.remote()
                    except ActorUnavailableError:
                        await asyncio.sleep(1)
        except TimeoutError:
            ray.kill(self._actor)
            raise EngineLost(
                f"{self.name} did not start within engines.start_timeout_s "
                f"{self._start_timeout_s:g} s"
            ) from None
        except RayError as error:
            raise EngineLost(f"{self.name} could not start: {reason(error)}") from None

    async def generate(self, request: Request) -> Result:
        return await self._call(self._actor.generate, request)

    async def sample(self) -> dict[str, float]:
        return await self._call(self._actor.sample)

    async def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return await method.remote(*arguments)
        except RayTaskError as error:
            raise RequestFailed(reason(error)) from None
        except RayError as error:
            raise EngineLost(f"{self.name} died: {reason(error)}") from None

    def stop(self) -> ray.ObjectRef:
        return self._actor.stop.remote()


def stop_all(engines: Sequence[RayEngine]) -> None:
    """Shut all of them down, and wait for it a while."""
    if engines:
        ray.wait([engine.stop() for engine in engines], num_returns=len(engines), timeout=STOP_S)


def reason(error: RayError) -> str:
    """The line of Ray's message that says what happened."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    name = type(cause).__name__
    if not lines:
        return name
    # Ours and Ray's are sentences; of others the type says half, as in KeyError: 'text'.
    return lines[-1] if isinstance(cause, BatchError | RayError) else f"{name}: {lines[-1]}"
