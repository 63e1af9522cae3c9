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
import sys
from functools import partial

import ray
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
from arkv_sglang.batch.ray_engine import RayEngine, stop_all
from arkv_sglang.batch.ray_placement import missing_resources
from arkv_sglang.batch.redact import redact_uris
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import RunFailed, Source
from arkv_sglang.config import ConfigError
from arkv_sglang.report.plan import print_plan


def say(message: str) -> None:
    print(redact_uris(message), flush=True)


def complain(message: object) -> None:
    print(redact_uris(f"longdoc: {message}"), file=sys.stderr, flush=True)


def main() -> int:
    arguments = parse_arguments(__doc__.splitlines()[0])
    try:
        config = load_config(arguments.config, arguments.set)
        models = {config.model_name, config.engine["model_path"]}
        source = open_documents(config.input, models, say=say)
        prompts = TokenizedPrompts(load_tokenizer(config.engine), config.prompt, config.strategy)
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
        stack.callback(stop_all, engines)
        stack.enter_context(contextlib.closing(folder))

        def make_engines() -> list[RayEngine]:
            ray.init()
            if sentence := missing_resources(config.engines):
                complain(sentence)
            engines.extend(RayEngine(f"engine-{n}", config) for n in range(config.engines.count))
            say(f"starting {len(engines)} engines of {config.engine['model_path']}")
            return engines

        def make_audit_engines(config: JobConfig) -> list[RayEngine]:
            stop_all(engines)
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
                stop_all([engine])
    except RunFailed as error:
        complain(error)
        return FAILED
    except asyncio.CancelledError:
        complain("stopped")
        return STOPPED
    print_plan(dry.plan(), Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
