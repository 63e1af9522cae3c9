"""The demo, from a fresh environment to a report: `make demo`, or `python -m arkv_sglang.demo`.

Two SGLang engines on the CPU summarize real documents under the ARKV policy, as a Ray job on a
local cluster that is started for it and stopped after it. Every step may be repeated: what is there
already is used again.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arkv_sglang.batch.local_ray import local_ray
from arkv_sglang.demo.corpus import build_corpus
from arkv_sglang.demo.model import ensure_model

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "out" / "demo"
CORPUS = ROOT / "out" / "corpus.parquet"
NUM_CPUS = 2  # one for each engine of configs/demo.yaml


def main() -> int:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="      %(message)s")
    started = time.monotonic()
    with step("1/4", "The model: SmolLM2-135M-Instruct"):
        model = ensure_model()
    with step("2/4", "The corpus: chapters of the Python manual and READMEs"):
        corpus = build_corpus(CORPUS)
    with step("3/4", "A local Ray cluster and a job on it: two engines, started in about a minute"):
        overrides = {
            "engine.model_path": str(model),
            "input.path": str(corpus),
            "output.dir": str(OUTPUT),
        }
        returncode = run_job(arguments.config, overrides, arguments.set)
    if returncode:
        print(f"The job failed (exit code {returncode}); its messages are above.", file=sys.stderr)
        return 1
    with step("4/4", "The results"):
        show_results()
    print(f"Done in {time.monotonic() - started:.0f} s.")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.demo")
    parser.add_argument("--config", default="configs/demo.yaml", help="relative to the project")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


@contextmanager
def step(number: str, title: str) -> Iterator[None]:
    print(f"[{number}] {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"      {time.monotonic() - started:.1f} s", flush=True)


def run_job(config: str, overrides: dict[str, str], more: list[str]) -> int:
    """Submit jobs/longdoc.py to a cluster of its own and follow it to its end."""
    # As JSON, so that no character of a path means something in YAML.
    settings = [f"{key}={json.dumps(value)}" for key, value in overrides.items()] + more
    command = ["python", "jobs/longdoc.py", "--config", config]
    command += [word for setting in settings for word in ("--set", setting)]
    with local_ray(num_cpus=NUM_CPUS) as cluster:
        return cluster.submit(command, working_dir=ROOT)


def show_results() -> None:
    results = [OUTPUT / name for name in ("summaries.parquet", "report.json", "report.html")]
    missing = [str(path) for path in results if not path.is_file()]
    if missing:
        raise RuntimeError(f"the job must write summaries and reports, got none: {missing}")
    for path in results:
        print(f"      {path}")


if __name__ == "__main__":
    sys.exit(main())
