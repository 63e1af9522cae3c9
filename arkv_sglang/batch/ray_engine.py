"""The scheduler's view of engines that run as Ray actors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    RayActorError,
    RayError,
    RayTaskError,
)

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.ray_actor import EngineActor
from arkv_sglang.batch.ray_placement import Place, described
from arkv_sglang.batch.types import (
    BatchError,
    EngineInfo,
    EngineLost,
    Request,
    RequestFailed,
    Result,
)

# Less than the 3 s that ``ray job stop`` leaves.
STOP_S = 2
_OURS = f"{EngineLost.__module__}.{EngineLost.__name__}: "
_ADVICE = " Some common causes include:"


class RayEngine:
    """One engine, and the actors that it runs in, one after the other. Ray restarts none of them:
    so a start that cannot work is not repeated, and one that hangs is given up."""

    def __init__(self, name: str, config: JobConfig) -> None:
        self.name = name
        self._config = config
        self._was_ready = False
        self._begin()

    def _begin(self) -> None:
        self._place = Place(self._config.engines)
        actor = ray.remote(**self._place.options())(EngineActor)
        self._actor = actor.remote(self._config)
        self._lost = False

    async def start(self) -> EngineInfo:
        try:
            return await self._start()
        except EngineLost:
            # Others may be waiting for its place.
            self.kill()
            raise

    async def _start(self) -> EngineInfo:
        failures = 0
        while True:
            if self._lost:
                self.kill()
                self._begin()
            try:
                info = await self._ready()
            except RayActorError as error:
                failures += 1
                # An engine that has never worked raises the same again; one that was well may
                # have met what is left of its predecessor.
                hopeless = error.actor_init_failed and not self._was_ready
                if hopeless or failures > self._config.engines.max_restarts:
                    raise EngineLost(f"{self.name} could not start: {reason(error)}") from None
                self._lost = True
            except RayError as error:
                raise EngineLost(f"{self.name} could not start: {reason(error)}") from None
            else:
                self._was_ready = True
                return info

    async def _ready(self) -> EngineInfo:
        """Raises EngineLost, RayError."""
        engines = self._config.engines
        limit = f"within engines.start_timeout_s {engines.start_timeout_s:g} s"
        try:
            async with asyncio.timeout(engines.start_timeout_s):
                await self._place.found()
        except TimeoutError:
            raise EngineLost(
                f"{self.name} found no node with {described(engines)} to spare {limit}"
            ) from None
        try:
            async with asyncio.timeout(engines.start_timeout_s):
                return await self._info()
        except TimeoutError:
            raise EngineLost(
                f"{self.name} was not ready {limit} after it was given a node"
            ) from None

    async def _info(self) -> EngineInfo:
        while True:
            try:
                return await self._actor.info.remote()
            except ActorUnavailableError:
                await asyncio.sleep(1)

    async def generate(self, request: Request) -> Result:
        return await self._call("generate", request)

    async def sample(self) -> dict[str, float]:
        return await self._call("sample")

    async def _call(self, method: str, *arguments: Any) -> Any:
        actor = self._actor
        try:
            return await getattr(actor, method).remote(*arguments)
        except RayTaskError as error:
            if not isinstance(error.cause, EngineLost):
                raise RequestFailed(reason(error)) from None
            why = reason(error)
        except RayError as error:
            why = reason(error)
        # The news may be late, and another actor up by now.
        self._lost |= actor is self._actor
        raise EngineLost(f"{self.name} died: {why}")

    def stop(self) -> ray.ObjectRef | None:
        """Ask it to shut down, if it is up."""
        return self._actor.stop.remote() if self._was_ready and not self._lost else None

    def kill(self) -> None:
        ray.kill(self._actor)
        self._place.give_up()


def stop_all(engines: Sequence[RayEngine]) -> None:
    """Shut all of them down, and kill those that take too long."""
    stopping = [ref for engine in engines if (ref := engine.stop()) is not None]
    if stopping:
        ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)
    for engine in engines:
        engine.kill()


def reason(error: RayError) -> str:
    """The line of Ray's message that says what happened."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    name = type(cause).__name__
    if not lines:
        return name
    line = lines[-1].partition(_ADVICE)[0]
    # Ours and Ray's are sentences; of others the type says half, as in KeyError: 'text'. An error
    # in the making of an actor comes without its cause, as text.
    is_sentence = isinstance(cause, BatchError | RayError)
    return line.removeprefix(_OURS) if is_sentence else f"{name}: {line}"
