"""Three arms in one run, at the same KV bytes: ``python -m arkv_sglang.bench --output FILE.json``.

Stock SGLang on a plain CPU recomputes a prompt's whole prefix for every chunk, so only the third
arm over the second is the gain of compression; both ratios are reported as what they are.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from arkv_sglang.bench.arms import Arm, Result, as_records, default_arms, run
from arkv_sglang.demo.corpus import build_corpus
from arkv_sglang.demo.model import ensure_model


def main() -> None:
    options = _options()
    model = options.model or str(ensure_model())
    arms = default_arms(options.budget)
    with tempfile.TemporaryDirectory() as folder:
        prompts = _prompts(model, options, Path(folder))
        results = {
            arm.name: run(
                arm,
                prompts,
                options.new_tokens,
                Path(folder),
                options.repeats,
                model_path=model,
                device=options.device,
                max_total_tokens=options.max_total_tokens,
                chunked_prefill_size=options.chunked_prefill_size,
            )
            for arm in arms
        }
    report = _report(options, arms, results)
    _show(results, report["ratios"])
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench")
    parser.add_argument("--model", help="a model's path or name; default: the demo model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=1600)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--budget", type=float, default=0.25)
    parser.add_argument("--max-total-tokens", type=int, default=12_000, help="KV bytes of each arm")
    parser.add_argument("--chunked-prefill-size", type=int, default=1024)
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs of each arm; the median counts"
    )
    parser.add_argument("--output", type=Path, help="JSON file for all figures")
    return parser.parse_args()


def _prompts(model: str, options: argparse.Namespace, folder: Path) -> list[list[int]]:
    """One chat prompt per document, cut to exactly the asked-for length."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = pq.read_table(build_corpus(folder / "corpus.parquet")).column("text").to_pylist()
    message = [{"role": "user", "content": "Summarize this document in three sentences.\n\n@@@"}]
    chat = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in chat.split("@@@")
    )
    room = options.prompt_tokens - len(before) - len(after)
    bodies = [tokenizer(text)["input_ids"] for text in texts]
    long_enough = [body[:room] for body in bodies if len(body) >= room][: options.documents]
    if len(long_enough) < options.documents:
        raise SystemExit(
            f"--documents must be at most {len(long_enough)} at {options.prompt_tokens} prompt "
            f"tokens with this corpus, got {options.documents}"
        )
    return [[*before, *body, *after] for body in long_enough]


def _median(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.wall_s)[len(results) // 2]


def _report(
    options: argparse.Namespace, arms: list[Arm], results: dict[str, list[Result]]
) -> dict[str, Any]:
    stock, uncompressed, compressed = (_median(results[arm.name]).wall_s for arm in arms)
    return {
        "settings": {key: str(value) for key, value in vars(options).items() if value is not None},
        "machine": {
            "cpu_threads": torch.get_num_threads(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in ("sglang", "torch", "arkv_sglang")},
        "arms": {name: as_records(each) for name, each in results.items()},
        "ratios": {
            "compressed_over_stock_speed": round(stock / compressed, 3),
            "compressed_over_uncompressed_speed": round(uncompressed / compressed, 3),
        },
    }


def _show(results: dict[str, list[Result]], ratios: dict[str, float]) -> None:
    names = list(as_records([_median(each) for each in results.values()])[0])
    table = Table(*[name.replace("_", " ") for name in names])
    for each in results.values():
        table.add_row(*(str(value) for value in as_records([_median(each)])[0].values()))
    Console().print(table)
    for name, value in ratios.items():
        print(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    main()
