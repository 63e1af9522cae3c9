"""A fact hidden in running text, and a question for it.

Needle in a haystack after RULER (arXiv 2404.06654); here values vary in form and length.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_recall

NEW_TOKENS = 48
NUM_DISTRACTORS = 6
# Of an arena, over the length of a prompt: neither both texts fit in bf16, nor must the first go
# where it is fp8.
DEMOTING_ROOM = 1.35
NOUNS = {"digits": "number", "words": "phrase", "uuid": "identifier"}
FORMS = tuple(NOUNS)
LATER = "Read the following text. A question about it will come later.\n"


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
        """In the words of the sentence, which a small model needs to find it at all."""
        return f"The special magic {NOUNS[self.form]} for {self.key} is:"


def draw_value(material: Material, rng: random.Random, form: str) -> str:
    """Of 4 to 10 digits, 2 or 3 words, or 2, 3 or all 5 groups of a UUID."""
    if form == "digits":
        length = rng.randint(4, 10)
        return str(rng.randrange(10 ** (length - 1), 10**length))
    if form == "words":
        return "-".join(material.pick_words(rng, rng.choice((2, 3))))
    groups = str(uuid.UUID(int=rng.getrandbits(128), version=4)).split("-")
    return "-".join(groups[: rng.choice((2, 3, 5))])


def hide(text: Sequence[str], count: int, sentences: Sequence[str], depths: Sequence[float]) -> str:
    """The first ``count`` pieces of ``text``, with each sentence at its share of them."""
    kept = list(text[:count])
    for depth, sentence in sorted(zip(depths, sentences, strict=True), reverse=True):
        kept.insert(round(depth * count), sentence)
    return "".join(kept)


def make_single(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _sample(material, "needle", number)


def make_multi_key(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _sample(material, "needle-multi-key", number, near_misses=True)


def make_later(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _sample(material, "needle-later", number, later=True)


def make_demoted(material: Material, count: int) -> Iterator[Sample]:
    """Another text, half as long, comes between the two requests."""
    prompts = material.prompts
    for number in range(count):
        sample = _sample(material, "needle-demoted", number, later=True)
        other = material.haystack(material.rng("needle-demoted other", number))
        between = prompts.plain("".join(other))[: prompts.length // 2]
        yield replace(sample, before=(*sample.before, between))


def _sample(
    material: Material, task: str, number: int, near_misses: bool = False, later: bool = False
) -> Sample:
    """``later``: the text is a request of its own, with which the second one's prompt begins."""
    prompts, rng = material.prompts, material.rng(task, number)
    text = material.haystack(rng)
    form = FORMS[number % len(FORMS)]
    keys = _near_keys(material, rng) if near_misses else material.pick_words(rng, 1)
    values: list[str] = []
    whole = "".join(text)
    while len(values) < len(keys):
        value = draw_value(material, rng, form)
        if value not in values and value not in whole:
            values.append(value)
    needles = [Needle(form, key, value) for key, value in zip(keys, values, strict=True)]
    asked, sentences = needles[0], [needle.sentence for needle in needles]
    depths = [material.depth(task, number), *(rng.random() for _ in needles[1:])]
    tail = prompts.tail(asked.question, asked.answer_prefix)
    warning = LATER if later else asked.warning

    def head(count: int) -> list[int]:
        return prompts.head(warning + hide(text, count, sentences, depths))

    document = head(prompts.largest(lambda count: head(count) + tail, len(text)))
    return Sample(
        task,
        number,
        document + tail,
        NEW_TOKENS,
        answers=(asked.value,),
        before=(document,) if later else (),
        about={"form": form, "depth": round(depths[0], 4), "key": asked.key},
    )


def _near_keys(material: Material, rng: random.Random) -> list[str]:
    """The key that is asked for, and others that share a word with it or have both the other way
    round."""
    first, second, *others = material.pick_words(rng, NUM_DISTRACTORS + 1)
    shared = [
        f"{first}-{other}" if n % 2 else f"{other}-{second}" for n, other in enumerate(others)
    ]
    return [f"{first}-{second}", f"{second}-{first}", *shared]


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
    Task(
        "needle-demoted",
        "the same with another text between, which quantizes the first in the cache if "
        f"--max-total-tokens is {DEMOTING_ROOM:g} times --length",
        make_demoted,
        score_recall,
        needs="--max-total-tokens",
    ),
)
