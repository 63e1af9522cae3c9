"""What a comparison leaves: a table on the screen, and one JSON record with its settings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arkv_sglang.bench.arms import Result, as_records
from arkv_sglang.bench.setting import setting
from arkv_sglang.report.plot_arena import arena_over_time


def median(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.wall_s)[len(results) // 2]


class Unfinished:
    """Runs that are done while a comparison goes on, beside its output: a run takes an hour, and
    one that was cut off goes on with the next one. Of other options, versions or another machine
    nothing is taken."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.output and options.output.with_suffix(".unfinished.json")
        self._setting = setting(options)
        self.results: dict[str, list[Result]] = {}
        if self._path and self._path.exists():
            record = json.loads(self._path.read_text())
            if record["setting"] == self._setting:
                self.results = {
                    name: [Result(**each) for each in found]
                    for name, found in record["arms"].items()
                }

    def add(self, name: str, found: Result) -> None:
        self.results.setdefault(name, []).append(found)
        if self._path:
            arms = {name: as_records(each) for name, each in self.results.items()}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            whole = self._path.with_suffix(".tmp")
            whole.write_text(json.dumps({"setting": self._setting, "arms": arms}))
            whole.replace(self._path)

    def remove(self) -> None:
        if self._path:
            self._path.unlink(missing_ok=True)


def as_report(
    options: argparse.Namespace, results: dict[str, list[Result]], ratios: dict[str, float]
) -> dict[str, Any]:
    return {
        **setting(options),
        "arms": {name: as_records(each) for name, each in results.items()},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
    }


def publish(
    options: argparse.Namespace, results: dict[str, list[Result]], ratios: dict[str, float]
) -> None:
    """Show the medians and the ratios. If ``options.output`` is given, write it, and beside it a
    plot of the arena over time, where that was sampled."""
    report = as_report(options, results, ratios)
    records = [
        {key: value for key, value in record.items() if key != "bytes_over_time"}
        for record in as_records([median(each) for each in results.values()])
    ]
    table = Table(*[name.replace("_", " ") for name in records[0]])
    for record in records:
        table.add_row(*("" if value is None else str(value) for value in record.values()))
    Console().print(table)
    for name, value in report["ratios"].items():
        print(f"{name.replace('_', ' ')}: {value}")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        Unfinished(options).remove()
        sampled = {name: median(each).bytes_over_time for name, each in results.items()}
        sampled = {name: samples for name, samples in sampled.items() if samples}
        if sampled:
            options.output.with_suffix(".svg").write_text(arena_over_time(sampled))
