"""Summarizes a corpus of long documents on a Ray cluster.

    ray job submit --working-dir . -- python jobs/longdoc.py --config configs/longdoc.yaml \
        --set output.dir=/data/summaries --set input.path=/data/corpus.parquet

With --dry-run it reads the whole input, says what the run would take, and writes nothing.

Exit code 0 when the run succeeded, 1 when it failed or more documents than run.max_failure_rate
allows did, 2 when the configuration or the input is wrong, 143 when it was stopped (SIGTERM).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.metrics import Counter, Gauge
from rich.console import Console

from arkv_sglang.batch.audit import AuditMeans
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.dry_run import DryRun
from arkv_sglang.batch.folder import OutputFolder
from arkv_sglang.batch.load import load_config
from arkv_sglang.batch.metrics import MetricsMirror
from arkv_sglang.batch.options import parse_arguments
from arkv_sglang.batch.outcome import FAILED, STOPPED, run_to_end, until_terminated
from arkv_sglang.batch.progress import Bar
from arkv_sglang.batch.prompts import TokenizedPrompts, load_tokenizer
from arkv_sglang.batch.redact import redact_uris
from arkv_sglang.batch.run import package_versions, run_job
from arkv_sglang.batch.types import (
    BatchError,
    EngineInfo,
    EngineLost,
    Request,
    RequestFailed,
    Result,
    RunFailed,
    Source,
)
from arkv_sglang.config import ConfigError
from arkv_sglang.report.plan import print_plan


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


class RayEngine:
    """The scheduler's view of an actor: Ray's errors become the batch package's."""

    def __init__(self, name: str, config: JobConfig) -> None:
        self.name = name
        self._start_timeout_s = config.engines.start_timeout_s
        actor = ray.remote(**actor_options(config))(EngineActor)
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

    def kill(self) -> None:
        """Give what it holds back to the cluster, at once."""
        ray.kill(self._actor)


def actor_options(config: JobConfig) -> dict[str, Any]:
    """Ray's options for one engine."""
    engines = config.engines
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


def reason(error: RayError) -> str:
    """The line of Ray's message that says what happened."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    name = type(cause).__name__
    if not lines:
        return name
    # Ours and Ray's are sentences; of others the type says half, as in KeyError: 'text'.
    return lines[-1] if isinstance(cause, BatchError | RayError) else f"{name}: {lines[-1]}"


def say(message: str) -> None:
    print(redact_uris(message), flush=True)


def complain(message: object) -> None:
    print(redact_uris(f"longdoc: {message}"), file=sys.stderr, flush=True)


def warn_of_missing_resources(config: JobConfig) -> None:
    have = ray.cluster_resources()
    for kind, each in (("GPU", config.engines.num_gpus), ("CPU", config.engines.num_cpus)):
        want = each * config.engines.count
        if want > have.get(kind, 0):
            complain(
                f"{config.engines.count} engines need {want:g} {kind} and the cluster has "
                f"{have.get(kind, 0):g} now; some engines will wait for more nodes"
            )


def main() -> int:
    arguments = parse_arguments(__doc__.splitlines()[0])
    try:
        config = load_config(arguments.config, arguments.set)
        models = {config.model_name, config.engine["model_path"]}
        source = open_documents(config.input, models)
        prompts = TokenizedPrompts(load_tokenizer(config.engine), config.prompt)
        if arguments.dry_run:
            return dry_run(config, source, prompts, arguments)
        folder = OutputFolder(config.output)
    except ConfigError as error:
        complain(error)
        return 2
    except RunFailed as error:
        complain(error)
        return FAILED
    engines: list[RayEngine] = []
    with contextlib.ExitStack() as stack:
        # Last of all, since it may take longer than a job that is stopped has.
        stack.callback(stop, engines)
        stack.enter_context(contextlib.closing(folder))

        def make_engines() -> list[RayEngine]:
            ray.init()
            warn_of_missing_resources(config)
            engines.extend(RayEngine(f"engine-{n}", config) for n in range(config.engines.count))
            say(f"starting {len(engines)} engines of {config.engine['model_path']}")
            return engines

        def make_audit_engines(config: JobConfig) -> list[RayEngine]:
            stop(engines)
            for engine in engines:
                engine.kill()
            engines[:] = [RayEngine(f"audit-{n}", config) for n in range(config.engines.count)]
            return engines

        bar = Bar(console) if (console := Console()).is_terminal else None
        mirror = partial(MetricsMirror, make_counter=Counter, make_gauge=Gauge)
        means = AuditMeans(partial(open_documents, config.input, models), make_audit_engines)
        run = run_job(config, make_engines, source, prompts, folder, say, bar, mirror, means)
        return run_to_end(run, config.run.max_failure_rate, complain)


def dry_run(
    config: JobConfig, source: Source, prompts: TokenizedPrompts, arguments: argparse.Namespace
) -> int:
    """Raises ConfigError."""
    dry = DryRun(config, prompts, arguments.from_report, arguments.kv_gib)
    try:
        dry.read(source, arguments.probe or 0)
        if dry.probes:
            ray.init()
            engine = RayEngine("probe", config)
            try:
                asyncio.run(until_terminated(dry.probe(engine)))
            finally:
                stop([engine])
    except RunFailed as error:
        complain(error)
        return FAILED
    except asyncio.CancelledError:
        complain("stopped")
        return STOPPED
    print_plan(dry.plan(), Console())
    return 0


def stop(engines: list[RayEngine]) -> None:
    if engines:
        ray.wait([engine.stop() for engine in engines], num_returns=len(engines), timeout=20)


if __name__ == "__main__":
    sys.exit(main())
