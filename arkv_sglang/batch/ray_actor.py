"""One SGLang engine in a process of its own, as a Ray actor."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import filelock
import ray

from arkv_sglang.batch.compile_cache import CompileCache
from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.last_words import LastWords
from arkv_sglang.batch.types import EngineInfo, EngineLost, Request, Result, describe
from arkv_sglang.batch.versions import package_versions
from arkv_sglang.batch.worker import EngineWorker

_HANDLER_NOTE = "Using custom SIGQUIT handler"


class EngineActor:
    """One ``sglang.Engine``. A plain class with threads, not an async actor: SGLang must be started
    in the main thread, where Ray runs ``__init__`` of such an actor alone."""

    def __init__(self, config: JobConfig) -> None:
        """Raises EngineLost, which says in one line why the engine cannot start."""
        words = LastWords()
        try:
            self._cache = CompileCache(config.engines.cache_dir)
            # Before SGLang is imported, which reads them.
            os.environ.update(self._cache.variables(config.engines.env))
            with turn(config.engines.num_gpus):
                engine = start_engine(config.engine)
        except Exception as error:
            raise EngineLost(why_not(error, words)) from None
        self._worker = EngineWorker(
            engine,
            config.sampling.model_dump(),
            package_versions(),
            config.run.request_timeout_s,
        )

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


def turn(num_gpus: float) -> AbstractContextManager[object]:
    """SGLang takes its share of what is free when it starts, so engines that share a GPU start one
    after the other."""
    if not 0 < num_gpus < 1:
        return nullcontext()
    name = f"arkv-gpu-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}-{os.getuid()}.lock"
    return filelock.FileLock(Path(tempfile.gettempdir(), name))


def start_engine(arguments: dict[str, Any]) -> Any:
    import sglang

    own = {
        # Load figures after every step, not every few, so that telemetry speaks of now.
        "load_snapshot_publish_interval": 1,
        # An idle scheduler would keep a core busy, which others on the machine could use.
        "sleep_on_idle": True,
        # A scheduler that fails sends it, and SGLang's handler would end this process at once,
        # before it can say what happened.
        "custom_sigquit_handler": signal.SIG_IGN,
    }
    logger = logging.getLogger("sglang.srt.entrypoints.engine")
    logger.addFilter(lambda record: not record.getMessage().startswith(_HANDLER_NOTE))
    return sglang.Engine(**own | arguments)


def why_not(error: Exception, words: LastWords) -> str:
    """Why an engine did not start, in one line."""
    message = describe(error)
    # SGLang itself refers to the log, unless its scheduler was killed by a signal.
    refers_to_log = "scheduler died during init" in message or "error messages above" in message
    if refers_to_log and "exit code: -" not in message:
        return words.exception() or message
    return message
