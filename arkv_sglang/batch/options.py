"""The command line of the job."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def parse_arguments(description: str) -> argparse.Namespace:
    """From the command line; ends the program with exit code 2 where it is wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", required=True, metavar="YAML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one dotted key"
    )
    dry = parser.add_argument_group("before a run")
    dry.add_argument("--dry-run", action="store_true", help="say what it would take, write nothing")
    time = dry.add_mutually_exclusive_group()
    time.add_argument("--probe", type=_positive(int), metavar="N", help="time N documents")
    time.add_argument("--from-report", metavar="JSON", help="take the speed of an earlier run")
    dry.add_argument(
        "--kv-gib", type=_positive(float), metavar="GIB", help="KV memory of an engine, if known"
    )
    arguments = parser.parse_args()
    options = (arguments.probe, arguments.from_report, arguments.kv_gib)
    if not arguments.dry_run and any(option is not None for option in options):
        parser.error("--probe, --from-report and --kv-gib must come with --dry-run; add it")
    return arguments


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A number of that kind, for argparse."""

    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}; correct it")
        return value

    # argparse names it where the text is no number at all.
    parse.__name__ = kind.__name__
    return parse
