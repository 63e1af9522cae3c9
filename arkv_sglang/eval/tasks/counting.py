"""Common and frequent words as RULER defines them (arXiv 2404.06654): what occurs most often in the
whole prompt, which no part of it tells."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator, Sequence

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_all

NUM_COMMON = 10
# Prompts below it have fewer repetitions: uses of a common word, and of any other one.
LONG_PROMPT_TOKENS = 4096
COMMON_TOKENS, FREQUENT_TOKENS = 120, 50
COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{text}\nQuestion: What are the 10 most common "
    "words in the above list?"
)
COMMON_ANSWER = "Answer: The top 10 words that appear most often in the list are:"
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {text}\nQuestion: Do not provide any explanation. Please "
    "ignore the dots '....'. What are the three most frequently appeared words in the above coded "
    "text?"
)
FREQUENT_ANSWER = (
    "Answer: According to the coded text above, the three most frequently appeared words are:"
)
# Words of the coded text follow k ** -2 over their ranks k; the sum over all of them is pi^2 / 6.
EXPONENT, ZETA = 2, math.pi**2 / 6
LETTERS = 6
TOKENS_PER_CODED_WORD_KIND = 50


def make_common(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _common(material, number)


def make_frequent(material: Material, count: int) -> Iterator[Sample]:
    for number in range(count):
        yield _frequent(material, number)


def _common(material: Material, number: int) -> Sample:
    prompts, rng = material.prompts, material.rng("common-words", number)
    is_long = prompts.length >= LONG_PROMPT_TOKENS
    example_size, example_uses, uses = (40, (10, 3), (30, 3)) if is_long else (20, (3, 1), (6, 1))
    solved, common = (material.pick_words(rng, NUM_COMMON) for _ in range(2))
    rest = [word for word in material.words if word not in {*solved, *common}]
    rng.shuffle(rest)
    order = rng.getrandbits(64)
    example = (
        f"{_listed(solved, rest[-(example_size - NUM_COMMON) :], example_uses, order)} "
        f"{COMMON_ANSWER} {_numbered(solved)}"
    )

    def build(num_rare: int) -> list[int]:
        task = f"{example}\n{_listed(common, rest[:num_rare], uses, order)}"
        return prompts.chat(task, COMMON_ANSWER)

    num_rare = prompts.largest(build, len(rest))
    if num_rare == len(rest):
        raise ConfigError(
            f"the texts must have more than {len(material.words)} different words to fill a prompt "
            f"of {prompts.length} tokens with common-words; name more with --text or ask for a "
            "smaller --length"
        )
    return Sample("common-words", number, build(num_rare), COMMON_TOKENS, answers=tuple(common))


def _listed(common: Sequence[str], rare: Sequence[str], uses: tuple[int, int], order: int) -> str:
    found = [*common] * uses[0] + [*rare] * uses[1]
    random.Random(order).shuffle(found)
    return COMMON.format(text=_numbered(found))


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{n}. {word}" for n, word in enumerate(words, 1))


def _frequent(material: Material, number: int) -> Sample:
    prompts, rng = material.prompts, material.rng("frequent-words", number)
    kinds: list[str] = []
    while len(kinds) < max(prompts.length // TOKENS_PER_CODED_WORD_KIND, 4):
        word = "".join(rng.choices(string.ascii_lowercase, k=LETTERS))
        if word not in kinds:
            kinds.append(word)
    answers = tuple(kinds[1:4])
    # The most frequent one is noise.
    kinds[0] = "..."
    order = rng.getrandbits(64)

    def build(num_words: int) -> list[int]:
        text: list[str] = []
        for rank, kind in enumerate(kinds, 1):
            text += [kind] * int(num_words / ZETA * rank**-EXPONENT)
        random.Random(order).shuffle(text)
        return prompts.chat(FREQUENT.format(text=" ".join(text)), FREQUENT_ANSWER)

    num_words = prompts.largest(build, prompts.length)
    return Sample("frequent-words", number, build(num_words), FREQUENT_TOKENS, answers=answers)


TASKS = (
    Task("common-words", "RULER's ten words that a list repeats most", make_common, score_all),
    Task("frequent-words", "RULER's three words of a coded text", make_frequent, score_all),
)
