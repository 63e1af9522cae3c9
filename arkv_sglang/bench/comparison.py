"""What comparisons have in common: options, and one run of all arms under them."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from arkv_sglang.bench.arms import Arm, Result, run
from arkv_sglang.bench.outcome import Unfinished


def new_parser(prog: str) -> argparse.ArgumentParser:
    """Knows ``--model`` and ``--device``; then come a comparison's own, then `add_run_options`."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--model", help="a model's path or name; default: the demo model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def add_run_options(
    parser: argparse.ArgumentParser, *, max_total_tokens: int, repeats: int = 1
) -> None:
    parser.add_argument(
        "--max-total-tokens", type=int, default=max_total_tokens, help="KV bytes of each arm"
    )
    parser.add_argument("--chunked-prefill-size", type=int, default=1024)
    parser.add_argument(
        "--repeats", type=int, default=repeats, help="runs of each arm; the median counts"
    )
    parser.add_argument("--output", type=Path, help="JSON file for all figures")


def run_arms(
    arms: Sequence[Arm],
    prompts: list[list[int]],
    max_total_tokens: int,
    options: argparse.Namespace,
    model: str,
    scratch: Path,
) -> dict[str, list[Result]]:
    """Each arm's results by its name. ``max_total_tokens``: KV bytes of each, in bf16 tokens.

    The arms take turns, each time with a new engine: two engines of one arm differ by several
    percent on a CPU, and the machine changes its speed over an hour. What a run of the same options
    that was cut off had done is taken from it."""
    done = Unfinished(options)
    for turn, arm in itertools.product(range(options.repeats), arms):
        name = f"{arm.name}, {turn + 1} of {options.repeats}"
        if len(done.results.get(arm.name, ())) > turn:
            print(f"{name}: done before", file=sys.stderr, flush=True)
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = run(
            arm,
            prompts,
            options.new_tokens,
            scratch,
            model_path=model,
            device=options.device,
            max_total_tokens=max_total_tokens,
            chunked_prefill_size=options.chunked_prefill_size,
        )
        done.add(arm.name, found)
        print(f"{name}: {found.wall_s:.0f} s", file=sys.stderr, flush=True)
    return {arm.name: done.results[arm.name] for arm in arms}
