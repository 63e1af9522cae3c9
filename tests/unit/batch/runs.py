"""Whole runs in this process, with engines that are not real."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.fence import LOCK
from arkv_sglang.batch.folder import MANIFEST, OutputFolder
from arkv_sglang.batch.run import run_job

from .fakes import FakePrompts


def configured(out: Path, **sections: dict[str, Any]) -> JobConfig:
    config: dict[str, dict[str, Any]] = {
        "input": {"path": "unused"},
        "engine": {"model_path": "some/model", "kv_policy": "arkv"},
        "sampling": {"max_new_tokens": 10},
        "output": {"dir": str(out)},
        "run": {"sample_period_s": 0.001, "progress_period_s": 0.002},
    }
    for name, section in sections.items():
        config[name] = config.get(name, {}) | section
    return JobConfig.model_validate(config)


def run(
    out: Path,
    fleet: list[Any],
    source: list[Any],
    prompts: Any = None,
    **sections: dict[str, Any],
) -> tuple[dict[str, Any], str]:
    config = configured(out, **sections)
    said: list[str] = []
    with contextlib.closing(OutputFolder(config.output)) as folder:
        job = run_job(
            config, lambda: fleet, iter(source), prompts or FakePrompts(), folder, said.append
        )
        return asyncio.run(job), "\n".join(said)


def files(folder: Path) -> dict[str, bytes]:
    """All but what every driver leaves."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if name not in (MANIFEST, LOCK)}
