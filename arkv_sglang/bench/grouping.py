"""What it is worth that documents which begin alike go to one engine: real engines, with and
without grouping, in processes of their own."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np

from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.types import OK, Document, EngineInfo, Request, Result, Row
from arkv_sglang.batch.worker import EngineWorker
from arkv_sglang.bench.prompts import question_prompts
from arkv_sglang.demo.model import ensure_model

QUESTIONS = (
    "Summarize it in three sentences.",
    "Who should read it, and why?",
    "Name three terms that it uses, and explain each.",
    "What does it leave open?",
)
TEXT_TOKENS = (600, 1_000)
NEW_TOKENS = 24
OFF, AT_ONCE, GROUPED = "off", "grouped, sent at once", "grouped"


@dataclass(frozen=True)
class Grouping:
    """Figures of one run. ``hit_rate``: cached over all prompt tokens."""

    arm: str
    requests: int
    prompt_tokens: int
    prefill_tokens: int
    output_tokens: int
    hit_rate: float
    wall_s: float


def measure(options: argparse.Namespace) -> list[Grouping]:
    """Each arm ``options.repeats`` times, in turn, on the same engines."""
    model = options.model or str(ensure_model())
    with tempfile.TemporaryDirectory() as folder:
        lengths = np.random.default_rng(0).integers(*TEXT_TOKENS, options.texts).tolist()
        texts = question_prompts(model, lengths, QUESTIONS, Path(folder))
    prompts = {
        name: Request(name, array("I", ids))
        for t, asked in enumerate(texts)
        for q, ids in enumerate(asked)
        for name in [f"text-{t} question-{q}"]
    }
    settings = {
        "model_path": model,
        "device": "cpu",
        "max_total_tokens": options.max_total_tokens,
        "chunked_prefill_size": 2048,
        "log_level": "error",
        # Else an idle engine takes a core from the other.
        "sleep_on_idle": True,
    }
    if options.layers:
        override = {"num_hidden_layers": options.layers}
        settings["json_model_override_args"] = json.dumps(override)
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    limits = Limits(max_new_tokens=NEW_TOKENS, window_docs=options.window_docs)
    found = []
    with started(options.engines, settings, sampling) as workers:
        run_arm(OFF, workers, dict(list(prompts.items())[:4]), limits)
        for arm in (OFF, AT_ONCE, GROUPED) * options.repeats:
            print(f"{arm} ...", file=sys.stderr, flush=True)
            found.append(run_arm(arm, workers, prompts, limits))
    return found


class Worker(EngineWorker):
    def flush(self) -> None:
        """Empty the prefix cache, once the last answer's request is gone."""
        flushed = self._on_loop(self._engine.tokenizer_manager.flush_cache(timeout_s=60))
        assert flushed.success, flushed.message


_worker: Worker | None = None


def _start_worker(settings: dict[str, Any], sampling: Mapping[str, Any]) -> None:
    """In the main thread of the engine's process, where SGLang wants to be started."""
    import sglang

    global _worker
    _worker = Worker(sglang.Engine(**settings), sampling, {}, request_timeout_s=3600)


def _get_worker() -> Worker:
    assert _worker is not None
    return _worker


class _Process(BaseManager):
    """One engine; its methods are called from here as if it were here."""


_Process.register("worker", _get_worker, exposed=("info", "generate", "flush", "stop"))


class ProcessEngine:
    """``holds_back``: whether requests of a group wait for the first one's prompt."""

    def __init__(self, name: str, worker: Any, holds_back: bool) -> None:
        self.name = name
        self._worker = worker
        self._holds_back = holds_back

    async def start(self) -> EngineInfo:
        info: EngineInfo = await asyncio.to_thread(self._worker.info)
        return info

    async def generate(self, request: Request) -> Result:
        if not self._holds_back:
            request = replace(request, prefix=None)
        result: Result = await asyncio.to_thread(self._worker.generate, request)
        return result

    async def sample(self) -> dict[str, float]:
        return {}


@contextmanager
def started(count: int, settings: dict[str, Any], sampling: Mapping[str, Any]) -> Iterator[Any]:
    """So many workers, each with its share of the cores."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // count))
    processes = [_Process(ctx=get_context("spawn")) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool, ExitStack() as stack:
        for _ in pool.map(lambda each: each.start(_start_worker, (settings, sampling)), processes):
            pass
        workers = []
        for process in processes:
            stack.callback(process.shutdown)
            workers.append(process.worker())  # type: ignore[attr-defined]
            stack.callback(workers[-1].stop)
        yield workers


def run_arm(
    arm: str, workers: list[Any], prompts: Mapping[str, Request], limits: Limits
) -> Grouping:
    """All prompts, in a random order that is the same for each arm, on empty caches."""
    for worker in workers:
        worker.flush()
    engines = [
        ProcessEngine(f"engine-{n}", worker, arm == GROUPED) for n, worker in enumerate(workers)
    ]
    names = list(prompts)
    random.Random(0).shuffle(names)
    source = (Document(name, name) for name in names)
    rows: list[Row] = []
    limits = replace(limits, group_prefixes=arm != OFF)
    scheduler = Scheduler(list(engines), source, Prebuilt(prompts), rows.append, limits)
    begun = time.perf_counter()
    asyncio.run(scheduler.run())
    wall_s = time.perf_counter() - begun
    assert [row.status for row in rows] == [OK] * len(prompts), rows
    prompt, cached, output = (
        sum(getattr(row, name) or 0 for row in rows)
        for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    return Grouping(
        arm=arm,
        requests=len(rows),
        prompt_tokens=prompt,
        prefill_tokens=prompt - cached,
        output_tokens=output,
        hit_rate=round(cached / prompt, 4),
        wall_s=round(wall_s, 2),
    )


class Prebuilt:
    def __init__(self, prompts: Mapping[str, Request]) -> None:
        self._prompts = prompts

    def build(self, document: Document) -> Request:
        return self._prompts[document.doc_id]
