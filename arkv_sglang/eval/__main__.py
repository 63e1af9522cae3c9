"""Accuracy of policies against full KV, in the real engine: ``python -m arkv_sglang.eval``.

Prints a table and, last, one JSON document; ``--out`` gets ``samples.parquet``, ``report.json`` and
a file for every sample that is done, so that a run which was cut off goes on with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from arkv_sglang.batch.identity import model_identity
from arkv_sglang.batch.model_shape import ModelShape, load_model_shape
from arkv_sglang.batch.prompts import load_tokenizer
from arkv_sglang.batch.types import RunFailed
from arkv_sglang.batch.versions import package_versions
from arkv_sglang.bench.setting import setting
from arkv_sglang.config import ConfigError
from arkv_sglang.core import Geometry
from arkv_sglang.eval.arms import make_arms
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.options import MIN_TOTAL_TOKENS, TOTAL_OVER_LENGTH, parse_options
from arkv_sglang.eval.plot import score_by_bytes
from arkv_sglang.eval.prompts import Prompts
from arkv_sglang.eval.report import build_report, score_all
from arkv_sglang.eval.rows import Rows
from arkv_sglang.eval.run import run_all
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.table import as_table
from arkv_sglang.eval.tasks import GROUPS, TASKS, chosen_tasks
from arkv_sglang.eval.texts import load_texts
from arkv_sglang.report.table import WIDTH

# The same for every arm.
ENGINE = {
    # Under overlap a logit processor, which forces a continuation, sees one output token too few.
    "disable_overlap_schedule": True,
    "enable_custom_logit_processor": True,
    "grammar_backend": "none",
    "log_level": "error",
    "random_seed": 0,
    "sleep_on_idle": True,
}
# An arena also holds tables and scales, and a prompt that does not fit is compressed by chunks.
ROOM = 1.25


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.list:
        for name, task in TASKS.items():
            files = f" (needs {task.needs})" if task.needs else ""
            print(f"{name}: {task.about}{files}")
        for name, names in GROUPS.items():
            print(f"{name}: {', '.join(names)}")
        return 0
    try:
        run(options)
    except (ConfigError, RunFailed) as error:
        # As the batch job's configuration calls it.
        say(f"eval: {error}".replace("engine.model_path", "--model"))
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Raises ConfigError before any engine starts."""
    model = options.model or demo_model()
    source = {**options.engine, "model_path": model}
    arms = make_arms(options.policies, options.budgets, options.arms)
    shape = load_model_shape(source)
    samples, tasks = make_samples(options, model, load_tokenizer(source))
    geometry = check_room(options, shape, samples)
    engine = ENGINE | {
        "device": options.device or default_device(),
        "max_total_tokens": total_tokens(options),
        "chunked_prefill_size": options.chunked_prefill_size,
        **options.engine,
    }
    identity = model_identity(source)
    rows = Rows(options.out, say)
    known = {
        "model": identity["hash"] or [model, identity["commit"]],
        "engine": engine,
        "versions": package_versions(),
    }
    # SGLang takes seconds to import, and what is wrong should be said before.
    from arkv_sglang.eval.serving import serving

    serve = partial(serving, geometry=geometry, engine=engine | source)
    found = run_all(samples, arms, rows, known, serve, say)
    scored = score_all(samples, arms, found, tasks)
    rows.write_all(scored)
    report = setting(options) | {"engine": engine}
    report |= build_report(scored, arms, options.full_kv_at_least)
    publish(options, report, rows)


def demo_model() -> str:
    from arkv_sglang.demo.model import ensure_model

    return str(ensure_model())


def total_tokens(options: argparse.Namespace) -> int:
    roomy: int = max(MIN_TOTAL_TOKENS, TOTAL_OVER_LENGTH * options.length)
    return options.max_total_tokens or roomy


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def make_samples(
    options: argparse.Namespace, model: str, tokenizer: Any
) -> tuple[list[Sample], dict[str, Task]]:
    """Of all tasks, and the task of each by the name that samples have it under. Raises
    ConfigError."""
    tasks = chosen_tasks(options.tasks, options.samples)
    for task in tasks:
        if task.needs and not getattr(options, task.needs.strip("-").replace("-", "_")):
            raise ConfigError(f"{task.needs} must be given for the task {task.name}, got nothing")
    material = Material(
        Prompts(tokenizer, options.length),
        load_texts(options.text, options.split),
        options.seed,
        model,
        options.gsm8k,
        options.longbench,
    )
    samples, by_name = [], {}
    for task, count in tasks.items():
        for sample in task.make(material, count):
            samples.append(sample)
            by_name[sample.task] = task
    return samples, by_name


def check_room(options: argparse.Namespace, shape: ModelShape, samples: list[Sample]) -> Geometry:
    """Raises ConfigError when one of ``samples`` is too long, or the model's KV is unknown."""
    longest = max(samples, key=lambda sample: sample.num_tokens)
    if shape.geometry is None:
        raise ConfigError(f"--model must keep plain K and V, but {shape.unknown}")
    if longest.num_tokens > shape.context_tokens:
        raise ConfigError(
            f"prompts and answers must fit the model's context of {shape.context_tokens} tokens, "
            f"got {longest.num_tokens} in {longest.task}; ask for a smaller --length"
        )
    if longest.num_tokens * ROOM > total_tokens(options):
        raise ConfigError(
            f"--max-total-tokens must be at least {int(longest.num_tokens * ROOM) + 1}, {ROOM:g} "
            f"times the longest prompt and answer ({longest.task}), got {total_tokens(options)}"
        )
    return shape.geometry


def publish(options: argparse.Namespace, report: dict[str, Any], rows: Rows) -> None:
    rows.write_json(report)
    if options.plot:
        try:
            options.plot.write_text(score_by_bytes(report))
        except (ConfigError, OSError) as error:
            # All that was measured is there already.
            say(f"eval: no plot was written: {error}")
    Console(width=None if sys.stdout.isatty() else WIDTH).print(as_table(report))
    print(json.dumps(report))


if __name__ == "__main__":
    sys.exit(main())
