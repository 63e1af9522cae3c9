"""What compression costs where it cannot help: ``python -m arkv_sglang.bench.roomy``.

The arena holds every document in bf16, so whoever is compressed is so for nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from operator import attrgetter
from pathlib import Path
from statistics import median

from arkv_sglang.bench.arms import Arm, uncompressed
from arkv_sglang.bench.comparison import add_run_options, new_parser, run_arms
from arkv_sglang.bench.outcome import publish
from arkv_sglang.bench.prompts import chat_prompts
from arkv_sglang.demo.model import ensure_model

BASE = uncompressed()
ARMS = (
    Arm("arkv 0.25", "arkv", {"budget": 0.25}),
    Arm("arkv 0.25 pressure", "arkv", {"budget": 0.25, "when": "pressure"}),
)


def main() -> None:
    options = _options()
    model = options.model or str(ensure_model())
    with tempfile.TemporaryDirectory() as folder:
        lengths = [options.prompt_tokens] * options.documents
        prompts = chat_prompts(model, lengths, Path(folder))
        arms = (BASE, *ARMS)
        results = run_arms(arms, prompts, options.max_total_tokens, options, model, Path(folder))
    ratios = {}
    for arm in ARMS:
        over = f"{arm.name.replace(' ', '_')}_over_{BASE.name}"
        for name, of in (("time", attrgetter("wall_s")), ("cpu_time", attrgetter("cpu_s"))):
            own, base = (median(map(of, results[each])) for each in (arm.name, BASE.name))
            ratios[f"{over}_{name}"] = own / base
    publish(options, results, ratios)


def _options() -> argparse.Namespace:
    parser = new_parser("python -m arkv_sglang.bench.roomy")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--new-tokens", type=int, default=64)
    add_run_options(parser, max_total_tokens=16_000, repeats=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
