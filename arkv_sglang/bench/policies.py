"""Policies at the same KV bytes, in one run: ``python -m arkv_sglang.bench.policies``.

Documents of many lengths in an arena that holds one or two of them in bf16: how many run at once,
and how fast.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from arkv_sglang.bench.arms import Arm, Result
from arkv_sglang.bench.comparison import add_run_options, new_parser, run_arms
from arkv_sglang.bench.outcome import median, publish
from arkv_sglang.bench.prompts import chat_prompts
from arkv_sglang.demo.model import ensure_model

SHORTEST, LONGEST = 1500, 6000

ARMS = (
    Arm("none", "none", None),
    Arm("quantized 0.55", "quantized", {"budget": 0.55}),
    Arm("arkv 0.25", "arkv", {"budget": 0.25}),
    Arm("arkv 0.125", "arkv", {"budget": 0.125}),
)


def lengths(count: int) -> list[int]:
    """Most documents are short: SHORTEST * 4 ** (u ** 3) for u in even steps from 0 to 1, shuffled
    (always alike)."""
    steps = [(i / max(count - 1, 1)) ** 3 for i in range(count)]
    found = [round(SHORTEST * (LONGEST / SHORTEST) ** step) for step in steps]
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    options = _options()
    model = options.model or str(ensure_model())
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        prompts = chat_prompts(model, lengths(options.documents), scratch)
        results = run_arms(ARMS, prompts, options.max_total_tokens, options, model, scratch)
    publish(options, results, _ratios({name: median(each) for name, each in results.items()}))


def _ratios(found: dict[str, Result]) -> dict[str, float]:
    stock = found["none"]
    ratios = {}
    for arm in ARMS[1:]:
        name, each = arm.name.replace(" ", "_"), found[arm.name]
        ratios[f"{name}_over_none_documents_per_min"] = stock.wall_s / each.wall_s
        ratios[f"{name}_over_none_peak_running"] = (
            each.peak_running_requests / stock.peak_running_requests
        )
        ratios[f"{name}_over_none_mean_running"] = (
            each.mean_running_requests / stock.mean_running_requests
        )
    return ratios


def _options() -> argparse.Namespace:
    parser = new_parser("python -m arkv_sglang.bench.policies")
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    add_run_options(parser, max_total_tokens=7000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
