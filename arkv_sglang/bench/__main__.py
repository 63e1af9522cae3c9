"""Three arms in one run, at the same KV bytes: ``python -m arkv_sglang.bench --output FILE.json``.

Stock SGLang on a plain CPU recomputes a prompt's whole prefix for every chunk, so only the third
arm over the second is the gain of compression; both ratios are reported as what they are.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from arkv_sglang.bench.arms import default_arms
from arkv_sglang.bench.comparison import add_run_options, new_parser, run_arms
from arkv_sglang.bench.outcome import median, publish
from arkv_sglang.bench.prompts import chat_prompts
from arkv_sglang.demo.model import ensure_model


def main() -> None:
    options = _options()
    model = options.model or str(ensure_model())
    arms = default_arms(options.budget)
    with tempfile.TemporaryDirectory() as folder:
        lengths = [options.prompt_tokens] * options.documents
        prompts = chat_prompts(model, lengths, Path(folder))
        results = run_arms(arms, prompts, options.max_total_tokens, options, model, Path(folder))
    stock, uncompressed, compressed = (median(results[arm.name]).wall_s for arm in arms)
    ratios = {
        "compressed_over_stock_speed": stock / compressed,
        "compressed_over_uncompressed_speed": uncompressed / compressed,
    }
    publish(options, results, ratios)


def _options() -> argparse.Namespace:
    parser = new_parser("python -m arkv_sglang.bench")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=1600)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--budget", type=float, default=0.25)
    add_run_options(parser, max_total_tokens=12_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
