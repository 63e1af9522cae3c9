"""How well the batch job spreads its work: ``python -m arkv_sglang.bench.scheduling``.

Idle engines at the end of skewed corpora, by simulation, and what grouping by prefix is worth, on
real engines. With ``--output FILE.json`` the figures are written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arkv_sglang.batch.scheduler import Limits
from arkv_sglang.bench import tail
from arkv_sglang.bench.setting import setting
from arkv_sglang.bench.simulated import OUTPUT_TOKENS


def main() -> None:
    options = _options()
    figures = {}
    if options.documents:
        tails = tail.measure_all(options.documents, Limits(max_new_tokens=OUTPUT_TOKENS))
        figures["idle_at_the_end"] = [asdict(each) for each in tails]
        _show(figures["idle_at_the_end"])
    if options.repeats:
        # Not before it is wanted: it loads the model's libraries.
        from arkv_sglang.bench.grouping import measure

        figures["grouping"] = [asdict(each) for each in measure(options)]
        _show(figures["grouping"])
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(setting(options) | figures, indent=1) + "\n")


def _show(records: Sequence[dict[str, Any]]) -> None:
    table = Table(*[name.replace("_", " ") for name in records[0]])
    for record in records:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in record.values()))
    Console().print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench.scheduling")
    parser.add_argument(
        "--documents", type=int, default=2_000, help="of each simulated corpus; 0: no simulation"
    )
    parser.add_argument(
        "--repeats", type=int, default=2, help="runs of each arm on real engines; 0: none"
    )
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
