"""LongBench (arXiv 2308.14508) from its files, with the prompts and scorers that lm-eval has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Template

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Outcome, Sample, Task
from arkv_sglang.eval.tasks.other_packages import load_module, package_folder
from arkv_sglang.eval.texts import read_lines

# Few-shot, or code to be completed: LongBench asks for these in no chat.
NO_CHAT = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
FIELDS = ("context", "input", "answers", "all_classes")


class _Loader(yaml.SafeLoader):
    """Takes ``!function metrics.NAME`` for text."""


_Loader.add_constructor("!function", lambda loader, node: str(node.value))


def make(material: Material, count: int) -> Iterator[Sample]:
    """``count`` samples of each file, which has the name of its dataset; each is a task in the
    results."""
    for path in material.longbench:
        settings = _settings(path)
        records = read_lines(path, "--longbench", FIELDS)
        order = list(range(len(records)))
        material.rng(f"longbench {path.stem}").shuffle(order)
        for number, index in enumerate(order[:count]):
            about = {"dataset": path.stem, "line": index + 1}
            yield _sample(material, number, settings, records[index], about)


def score(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """As the dataset is scored."""
    metrics = load_module(_folder() / "metrics.py")
    function = getattr(metrics, sample.about["scorer"].removeprefix("metrics."))
    record = {"answers": list(sample.answers), "all_classes": sample.about["all_classes"]}
    return {"score": float(function(record, [outcome.output])["score"])}


def _folder() -> Path:
    install = "lm-eval[longbench]"
    folder = package_folder("lm_eval", "longbench", install) / "tasks/longbench"
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        package_folder(package, "longbench", install)
    return folder


def _settings(path: Path) -> dict[str, Any]:
    settings = _folder() / f"{path.stem}.yaml"
    if not settings.is_file():
        known = sorted(each.stem for each in settings.parent.glob("*.yaml") if each.stem[0] != "_")
        raise ConfigError(
            f"--longbench must name files that are called as LongBench's datasets are "
            f"({', '.join(known)}), got {str(path)!r}; rename it"
        )
    return dict(yaml.load(settings.read_text(), _Loader))


def _sample(
    material: Material,
    number: int,
    settings: dict[str, Any],
    record: dict[str, Any],
    about: dict[str, Any],
) -> Sample:
    # LongBench's own files call the question the input.
    fields = {**record, "question": record["input"]}
    text = Template(settings["doc_to_text"], keep_trailing_newline=True).render(fields)
    prompts, generation = material.prompts, settings["generation_kwargs"]
    if about["dataset"] in NO_CHAT:
        ids = prompts.without_middle(prompts.plain(text))
    else:
        # The frame of the chat stays whole.
        frame = len(prompts.chat(""))
        ids = prompts.without_middle(prompts.tokens(text), prompts.length - frame)
        ids = [*prompts.head(""), *ids, *prompts.tail("")]
    return Sample(
        f"longbench-{about['dataset']}",
        number,
        ids,
        generation["max_gen_toks"],
        answers=tuple(record["answers"]),
        stop=tuple(generation["until"]),
        about={
            **about,
            "scorer": settings["process_results"],
            "all_classes": record["all_classes"],
        },
    )


TASKS = (
    Task(
        "longbench",
        "LongBench's datasets; what is longer than --length is cut in the middle",
        make,
        score,
        needs="--longbench",
    ),
)
