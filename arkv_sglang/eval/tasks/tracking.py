"""Variable tracking as RULER defines it (arXiv 2404.06654): one chain of four hops in noise, after
a small one that is solved."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_all

NEW_TOKENS = 30
HOPS = 4
EXAMPLE_NOISE = 8
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{text}\nQuestion: Find all variables that are assigned the value {value} in the text above."
)
ANSWER = (
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables "
    "are assigned the value {value}, they are:"
)


class Chain:
    """``value`` goes to the first variable, and from each to the next."""

    def __init__(self, rng: random.Random, letters: int) -> None:
        self.names: list[str] = []
        while len(self.names) <= HOPS:
            name = "".join(rng.choices(string.ascii_uppercase, k=letters))
            if name not in self.names:
                self.names.append(name)
        self.value = str(rng.randrange(10_000, 100_000))
        self._places = sorted(rng.random() for _ in self.names)

    def question(self, num_noise: int) -> str:
        sources = [self.value, *(f"VAR {name}" for name in self.names)]
        lines = [NOISE] * num_noise
        for place, name, source in reversed(
            list(zip(self._places, self.names, sources, strict=False))
        ):
            lines.insert(round(place * num_noise), f"VAR {name} = {source}")
        return QUESTION.format(text="\n".join(lines), value=self.value)

    @property
    def answer_prefix(self) -> str:
        return ANSWER.format(count=len(self.names), value=self.value)


def make(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _sample(material, number)


def _sample(material: Material, number: int) -> Sample:
    rng = material.rng("variable-tracking", number)
    solved, chain = Chain(rng, letters=3), Chain(rng, letters=5)
    example = f"{solved.question(EXAMPLE_NOISE)} {solved.answer_prefix} {' '.join(solved.names)}"

    def build(num_noise: int) -> list[int]:
        task = f"{example}\n\n{chain.question(num_noise)}"
        return material.prompts.chat(task, chain.answer_prefix)

    num_noise = material.prompts.largest(build, material.prompts.length // 10)
    return Sample(
        "variable-tracking", number, build(num_noise), NEW_TOKENS, answers=tuple(chain.names)
    )


TASKS = (
    Task("variable-tracking", "RULER's chain of assignments, hidden in noise", make, score_all),
)
