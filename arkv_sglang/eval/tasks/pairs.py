"""Key-value recall: one value of a JSON object of random pairs (arXiv 2307.03172)."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator

from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_recall

NEW_TOKENS = 48
TOKENS_PER_PAIR = 16
TASK = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
QUESTION = '\n\nWhat is the value of the key "{key}"?'
ANSWER = 'The value of the key "{key}" is "'


def make(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _sample(material, number)


def _sample(material: Material, number: int) -> Sample:
    prompts, rng = material.prompts, material.rng("key-value", number)
    depth = material.depth("key-value", number)
    most = prompts.length // TOKENS_PER_PAIR + 1
    pairs = [(_draw(rng), _draw(rng)) for _ in range(most + 1)]
    (key, value), others = pairs[0], pairs[1:]

    def build(count: int) -> list[int]:
        shown = others[:count]
        shown.insert(round(depth * count), (key, value))
        # One pair a line.
        text = json.dumps(dict(shown), indent=0)
        return prompts.chat(TASK + text + QUESTION.format(key=key), ANSWER.format(key=key))

    count = prompts.largest(build, most)
    about = {"depth": round(depth, 4), "key": key, "pairs": count + 1}
    return Sample("key-value", number, build(count), NEW_TOKENS, answers=(value,), about=about)


def _draw(rng: random.Random) -> str:
    """Two groups of a random UUID."""
    return "-".join(str(uuid.UUID(int=rng.getrandbits(128), version=4)).split("-")[:2])


TASKS = (Task("key-value", "one value of a JSON object of random pairs", make, score_recall),)
