"""A fact hidden in running text, and a question for it.

Needle in a haystack in the wording of RULER (arXiv 2404.06654); here its values vary in form and
length.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_recall

NEW_TOKENS = 48
NUM_DISTRACTORS = 6
NOUNS = {"digits": "number", "words": "phrase", "uuid": "identifier"}


@dataclass(frozen=True)
class Needle:
    form: str
    key: str
    value: str

    @property
    def sentence(self) -> str:
        return f" One of the special magic {NOUNS[self.form]}s for {self.key} is: {self.value}."

    @property
    def warning(self) -> str:
        noun = NOUNS[self.form]
        return (
            f"A special magic {noun} is hidden within the following text. Make sure to memorize "
            f"it. I will quiz you about the {noun} afterwards.\n"
        )

    @property
    def question(self) -> str:
        return (
            f"\n\nWhat is the special magic {NOUNS[self.form]} for {self.key} mentioned in the "
            "provided text?"
        )

    @property
    def answer_prefix(self) -> str:
        return (
            f"The special magic {NOUNS[self.form]} for {self.key} mentioned in the provided text is"
        )


def draw_value(material: Material, rng: random.Random, form: str) -> str:
    """Of 4 to 10 digits, 2 or 3 words, or 2, 3 or all 5 groups of a UUID."""
    if form == "digits":
        length = rng.randint(4, 10)
        return str(rng.randrange(10 ** (length - 1), 10**length))
    if form == "words":
        return "-".join(material.pick_words(rng, rng.choice((2, 3))))
    groups = str(uuid.UUID(int=rng.getrandbits(128), version=4)).split("-")
    return "-".join(groups[: rng.choice((2, 3, 5))])


def hide(text: list[str], count: int, sentences: list[str], depths: list[float]) -> str:
    """The first ``count`` pieces of ``text``, with each sentence at its share of them."""
    kept = text[:count]
    for depth, sentence in sorted(zip(depths, sentences, strict=True), reverse=True):
        kept.insert(round(depth * count), sentence)
    return "".join(kept)


def make_single(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        rng = material.rng("needle", number)
        needle = _draw(material, rng, number)
        depth = material.depth("needle", number)
        yield _sample(material, "needle", number, needle, [], [depth], needle.warning)


def make_later(material: Material, count: int) -> Iterator[Sample]:
    """The document is a request of its own; the second one's prompt begins with it."""
    for number in range(count):
        rng = material.rng("needle-later", number)
        needle = _draw(material, rng, number)
        depth = material.depth("needle-later", number)
        warning = "Read the following text. A question about it will come later.\n"
        yield _sample(
            material, "needle-later", number, needle, [], [depth], warning, first_alone=True
        )


def make_multi_key(material: Material, count: int) -> Iterator[Sample]:
    """Other needles have keys that share a word with the one that is asked for."""
    for number in range(count):
        rng = material.rng("needle-multi-key", number)
        first, second, *others = material.pick_words(rng, 2 + NUM_DISTRACTORS)
        form = list(NOUNS)[number % len(NOUNS)]
        needle = Needle(form, f"{first}-{second}", draw_value(material, rng, form))
        keys = [f"{second}-{first}"]
        keys += [f"{first}-{word}" for word in others[::2]]
        keys += [f"{word}-{second}" for word in others[1::2]]
        distractors: list[Needle] = []
        for key in keys[:NUM_DISTRACTORS]:
            value = needle.value
            while value in (needle.value, *(each.value for each in distractors)):
                value = draw_value(material, rng, form)
            distractors.append(Needle(form, key, value))
        depths = [material.depth("needle-multi-key", number)]
        depths += [rng.random() for _ in distractors]
        yield _sample(
            material, "needle-multi-key", number, needle, distractors, depths, needle.warning
        )


def _draw(material: Material, rng: random.Random, number: int) -> Needle:
    form = list(NOUNS)[number % len(NOUNS)]
    return Needle(form, material.pick_words(rng, 1)[0], draw_value(material, rng, form))


def _sample(
    material: Material,
    task: str,
    number: int,
    needle: Needle,
    distractors: list[Needle],
    depths: list[float],
    warning: str,
    first_alone: bool = False,
) -> Sample:
    prompts = material.prompts
    text = material.haystack(material.rng(f"{task} text", number))
    sentences = [each.sentence for each in (needle, *distractors)]
    tail = prompts.tail(needle.question, needle.answer_prefix)

    def head(count: int) -> list[int]:
        return prompts.head(warning + hide(text, count, sentences, depths))

    count = prompts.largest(lambda count: head(count) + tail, len(text))
    document = head(count)
    return Sample(
        task=task,
        number=number,
        prompt=document + tail,
        new_tokens=NEW_TOKENS,
        answers=(needle.value,),
        before=(document,) if first_alone else (),
        about={"form": needle.form, "depth": round(depths[0], 4), "key": needle.key},
    )


TASKS = (
    Task(
        "needle", "one fact in running text, the question in the prompt", make_single, score_recall
    ),
    Task(
        "needle-multi-key",
        f"the same among {NUM_DISTRACTORS} others whose keys share a word with it",
        make_multi_key,
        score_recall,
    ),
    Task(
        "needle-later",
        "the text is served first, the question comes in a second request through the radix cache",
        make_later,
        score_recall,
    ),
)
