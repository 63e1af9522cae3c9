"""What the driver itself costs: ``python -m arkv_sglang.bench.driver --output FILE.json``.

Engines that answer at once take no time, so what a run takes is the driver's own: reading,
scheduling, committing, merging and the report. Tokenizing is left out, since it is the model's.
The same run on the finished folder shows what resuming takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
import zlib
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.folder import PARTS, OutputFolder
from arkv_sglang.batch.identity import config_hash
from arkv_sglang.batch.resume import read_outcomes
from arkv_sglang.batch.run import run_job
from arkv_sglang.batch.types import Document, EngineInfo, Part, Request, Result
from arkv_sglang.bench.setting import setting

CHARACTERS_PER_TOKEN = 4
INSTRUCTION_TOKENS = 30
SUMMARY = "A summary of some hundred tokens. " * 12


class InstantEngine:
    """Answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def start(self) -> EngineInfo:
        return EngineInfo(context_tokens=1 << 20, capacity_tokens=1 << 20, device="none")

    async def generate(self, request: Request) -> Result:
        return Result(SUMMARY, request.prompt_tokens, 100, 0, "stop", 0.0, 0.0)

    async def sample(self) -> dict[str, float]:
        return {"running_requests": 0}


class InstantPrompts:
    """An instruction, and as many token ids as a text of this length has."""

    def build(self, document: Document) -> Request:
        ids = array("I", [0]) * INSTRUCTION_TOKENS
        word = zlib.crc32(document.text.encode())
        ids += array("I", [word]) * (len(document.text) // CHARACTERS_PER_TOKEN)
        return Request(document.doc_id, ids)

    def build_part(self, document: Document, part: Part, text: str, summary: str = "") -> Request:
        return self.build(replace(document, text=text))

    def token_starts(self, text: str) -> Sequence[int]:
        return range(0, len(text), CHARACTERS_PER_TOKEN)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpus, out = Path(folder, "corpus.jsonl"), Path(folder, "out")
        _write_corpus(corpus, options.documents, options.characters)
        config = JobConfig.model_validate(
            {
                "input": {"path": str(corpus)},
                "engine": {"model_path": "none"},
                "output": {"dir": str(out)},
            }
        )
        before = _peak_rss_mib()
        first_s, first_cpu_s = _run(config, options.engines)
        peak_rss_mib = _peak_rss_mib()
        resumed_s, resumed_cpu_s = _run(config, options.engines)
        figures = {
            "documents": options.documents,
            "run_s": first_s,
            "driver_ms_per_document": first_s / options.documents * 1e3,
            "driver_cpu_ms_per_document": first_cpu_s / options.documents * 1e3,
            "peak_rss_mib": peak_rss_mib,
            "rss_before_mib": before,
            "resumed_run_s": resumed_s,
            "resumed_run_cpu_s": resumed_cpu_s,
            "read_keys_s": _read_keys_s(config),
            "part_files": len(list((out / PARTS).iterdir())),
        }
    _publish(options, {name: round(value, 3) for name, value in figures.items()})


def _run(config: JobConfig, count: int) -> tuple[float, float]:
    """Wall and CPU seconds from opening the folder to the report."""
    started, started_cpu = time.perf_counter(), time.process_time()
    engines = [InstantEngine(f"engine-{n}") for n in range(count)]
    with closing(OutputFolder(config.output)) as folder:
        source, prompts = open_documents(config.input), InstantPrompts()
        report = asyncio.run(
            run_job(config, lambda: engines, source, prompts, folder, lambda line: None)
        )
    documents = report["totals"]["documents"]
    assert documents["ok"] == documents["all"], documents
    return time.perf_counter() - started, time.process_time() - started_cpu


def _read_keys_s(config: JobConfig) -> float:
    with closing(OutputFolder(config.output)) as folder:
        started = time.perf_counter()
        read_outcomes(folder, folder.parts(), config_hash(config))
        return time.perf_counter() - started


def _write_corpus(path: Path, documents: int, characters: int) -> None:
    with path.open("w") as file:
        for n in range(documents):
            text = f"Document {n}. " * (characters // 12)
            file.write(json.dumps({"doc_id": f"document-{n}", "text": text[:characters]}) + "\n")


def _peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _publish(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    Console().print(table)
    if options.output:
        report = setting(options) | {"figures": figures}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench.driver")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--characters", type=int, default=8_000, help="length of a document")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where to write, else the temporary folder")
    parser.add_argument("--output", type=Path, metavar="JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
