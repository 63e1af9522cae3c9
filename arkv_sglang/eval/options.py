"""The options of ``python -m arkv_sglang.eval``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arkv_sglang.eval.report import FULL_KV_AT_LEAST
from arkv_sglang.unique_keys import read_json

MIN_TOTAL_TOKENS, TOTAL_OVER_LENGTH = 8192, 4


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m arkv_sglang.eval",
        description="Accuracy of KV policies in the real engine, on the same prompts as full KV.",
    )
    parser.add_argument("--list", action="store_true", help="say what the tasks are, and end")
    parser.add_argument("--model", help="a model's path or name; default: the demo model")
    parser.add_argument(
        "--policies", type=names, default=["arkv"], help="a,b; full KV is always there"
    )
    parser.add_argument(
        "--budgets",
        type=budgets,
        default=[0.5, 0.25, 0.125, 0.0625],
        help="of every policy: ratios of bf16 bytes, or whole numbers of tokens",
    )
    parser.add_argument(
        "--arms", type=Path, help="YAML: names of arms to a policy and its settings"
    )
    parser.add_argument("--tasks", default="own", help="a,b:SAMPLES, or a group of --list")
    parser.add_argument("--samples", type=positive, default=16, help="of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=positive, default=2048, help="of a prompt, in tokens")
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
        type=positive,
        help=f"KV bytes of each engine; default: {TOTAL_OVER_LENGTH} times --length, "
        f"{MIN_TOTAL_TOKENS} at least",
    )
    parser.add_argument("--chunked-prefill-size", type=positive, default=2048)
    parser.add_argument(
        "--engine",
        type=mapping,
        default={},
        metavar="JSON",
        help="more settings of SGLang, for every arm",
    )
    options = parser.parse_args(arguments)
    if options.out is None and not options.list:
        parser.error("--out must name a folder for the results")
    return options


# Their names are what argparse says of a value that raises ValueError.


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def budgets(text: str) -> list[int | float]:
    return [int(each) if each.strip().isdecimal() else float(each) for each in text.split(",")]


def mapping(text: str) -> dict[str, Any]:
    try:
        found = read_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    if taken := found.keys() & {"kv_policy", "kv_policy_config", "model_path"}:
        raise argparse.ArgumentTypeError(
            f"must leave {', '.join(sorted(taken))} to --model, --policies and --arms"
        )
    return found


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
