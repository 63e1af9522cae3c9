"""How well the batch job spreads its work: ``python -m arkv_sglang.bench.scheduling``.

Idle engines at the end of skewed corpora, by simulation, and what grouping by prefix is worth, on
real engines. With ``--output FILE.json`` the figures are written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from arkv_sglang.batch.scheduler import Limits
from arkv_sglang.batch.types import Request
from arkv_sglang.bench import grouping, tail
from arkv_sglang.bench.prompts import question_prompts
from arkv_sglang.bench.setting import setting
from arkv_sglang.bench.simulated import OUTPUT_TOKENS
from arkv_sglang.demo.model import ensure_model

QUESTIONS = (
    "Summarize it in three sentences.",
    "Who should read it, and why?",
    "Name three terms that it uses, and explain each.",
    "What does it leave open?",
)
ARMS = (grouping.OFF, grouping.AT_ONCE, grouping.GROUPED)
NEW_TOKENS = 24


def main() -> None:
    options = _options()
    figures: dict[str, list[dict[str, Any]]] = {}
    limits = Limits(max_new_tokens=OUTPUT_TOKENS)
    tails = tail.measure_all(options.documents, limits)
    figures["idle_at_the_end"] = [asdict(each) for each in tails]
    _show(figures["idle_at_the_end"])
    if options.repeats:
        figures["grouping"] = [asdict(each) for each in _measure_grouping(options)]
        _show(figures["grouping"])
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(setting(options) | figures, indent=1) + "\n")


def _measure_grouping(options: argparse.Namespace) -> list[grouping.Grouping]:
    model = options.model or str(ensure_model())
    with tempfile.TemporaryDirectory() as folder:
        lengths = np.random.default_rng(0).integers(600, 1001, options.texts).tolist()
        prompts = question_prompts(model, lengths, QUESTIONS, Path(folder))
    requests = {
        f"text-{t} question-{q}": Request(f"text-{t} question-{q}", array("I", ids))
        for t, asked in enumerate(prompts)
        for q, ids in enumerate(asked)
    }
    settings = {
        "model_path": model,
        "device": "cpu",
        "max_total_tokens": options.max_total_tokens,
        "chunked_prefill_size": 2048,
        "log_level": "error",
    }
    if options.layers:
        override = json.dumps({"num_hidden_layers": options.layers})
        settings["json_model_override_args"] = override
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    limits = Limits(max_new_tokens=NEW_TOKENS, window_docs=options.window_docs)
    found = []
    with grouping.started(options.engines, settings, sampling) as workers:
        grouping.run_arm(grouping.OFF, workers, dict(list(requests.items())[:4]), limits)
        for arm in ARMS * options.repeats:
            print(f"{arm} ...", file=sys.stderr, flush=True)
            found.append(grouping.run_arm(arm, workers, requests, limits))
    return found


def _show(records: Sequence[dict[str, Any]]) -> None:
    table = Table(*[name.replace("_", " ") for name in records[0]])
    for record in records:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in record.values()))
    Console().print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench.scheduling")
    parser.add_argument("--documents", type=int, default=2_000, help="of each simulated corpus")
    parser.add_argument("--repeats", type=int, default=2, help="of the arms on real engines")
    parser.add_argument("--model", help="a model's path or name; default: the demo model")
    parser.add_argument("--layers", type=int, default=6, help="of the model; 0: all")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--texts", type=int, default=12, help="each with four questions")
    parser.add_argument("--window-docs", type=int, default=8)
    parser.add_argument("--max-total-tokens", type=int, default=8_000, help="of each engine")
    parser.add_argument("--output", type=Path, metavar="JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
