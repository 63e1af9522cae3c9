"""The options of ``python -m arkv_sglang.eval``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arkv_sglang.eval.report import FULL_KV_AT_LEAST

MIN_TOTAL_TOKENS, TOTAL_OVER_LENGTH = 8192, 4


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m arkv_sglang.eval",
        description="Accuracy of KV policies in the real engine, on the same prompts as full KV.",
    )
    parser.add_argument("--list", action="store_true", help="say what the tasks are, and end")
    parser.add_argument("--model", help="a model's path or name; default: the demo model")
    parser.add_argument(
        "--policies", type=_names, default=["arkv"], help="a,b; full KV is always there"
    )
    parser.add_argument(
        "--budgets",
        type=_budgets,
        default=[0.5, 0.25, 0.125, 0.0625],
        help="of every policy: ratios of bf16 bytes, or whole numbers of tokens",
    )
    parser.add_argument(
        "--arms", type=Path, help="YAML: names of arms to a policy and its settings"
    )
    parser.add_argument("--tasks", default="own", help="a,b:SAMPLES, or a group of --list")
    parser.add_argument("--samples", type=_positive, default=16, help="of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=_positive, default=2048, help="of a prompt, in tokens")
    parser.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument(
        "--split",
        choices=("all", "tune", "report"),
        default="all",
        help="one half of the texts to tune on and the other to report",
    )
    parser.add_argument("--gsm8k", type=Path, metavar="FILE", help="test.jsonl of GSM8K")
    parser.add_argument("--longbench", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--out", type=Path, help="a folder; a run that was cut off goes on in it")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="score against bytes")
    parser.add_argument(
        "--full-kv-at-least",
        type=float,
        default=FULL_KV_AT_LEAST,
        help="means are over the tasks on which full KV scores so much",
    )
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument(
        "--max-total-tokens",
        type=_positive,
        help=f"KV bytes of each engine; default: {TOTAL_OVER_LENGTH} times --length, "
        f"{MIN_TOTAL_TOKENS} at least",
    )
    parser.add_argument("--chunked-prefill-size", type=_positive, default=2048)
    options = parser.parse_args(arguments)
    if options.out is None and not options.list:
        parser.error("--out must name a folder for the results")
    if options.max_total_tokens is None:
        options.max_total_tokens = max(MIN_TOTAL_TOKENS, TOTAL_OVER_LENGTH * options.length)
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _budgets(text: str) -> list[int | float]:
    return [int(each) if each.strip().isdecimal() else float(each) for each in text.split(",")]


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
