"""Tasks that are judged by full KV: how a text goes on, and a summary of it."""

from __future__ import annotations

from collections.abc import Iterator

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.material import Material
from arkv_sglang.eval.sample import Sample, Task
from arkv_sglang.eval.scores import score_measured, score_summary
from arkv_sglang.eval.texts import pieces

FORCED_TOKENS = 64
SUMMARY_TOKENS = 128
INSTRUCTION = "Summarize this document in three sentences.\n\n"


def make_continuation(material: Material, count: int) -> Iterator[Sample]:
    """A stretch of the texts, and the tokens that really follow."""
    prompts = material.prompts
    texts = [prompts.tokens(f"\n\n{text.text}") for text in material.texts]
    begin = prompts.plain("")
    needed = prompts.length + FORCED_TOKENS
    if (found := sum(map(len, texts))) < needed:
        raise ConfigError(
            f"the texts must have at least {needed} tokens for continuation, got {found}; name "
            "more with --text or ask for a smaller --length"
        )
    for number in range(count):
        rng = material.rng("continuation", number)
        order = list(texts)
        rng.shuffle(order)
        ids = [token for text in order for token in text]
        start = rng.randint(0, len(ids) - needed)
        stretch = begin + ids[start : start + needed - len(begin)]
        prompt, forced = stretch[: prompts.length], tuple(stretch[prompts.length :])
        yield Sample("continuation", number, prompt, FORCED_TOKENS, forced=forced)


def make_summary(material: Material, count: int) -> Iterator[Sample]:
    """Of as much of a text as the length allows; each text once before any comes again, then from
    another place on."""
    prompts = material.prompts
    order = list(material.texts)
    material.rng("summary").shuffle(order)
    for number in range(count):
        text = order[number % len(order)]
        rng = material.rng("summary", number)
        parts = pieces([text], rng, 1)
        is_first = number < len(order)
        start = 0 if is_first else rng.randrange(len(parts))
        parts = parts[start:]

        def build(count: int, parts: list[str] = parts) -> list[int]:
            return prompts.chat(INSTRUCTION + "".join(parts[:count]).strip())

        kept = prompts.largest(build, len(parts))
        # A summary by people is one of the whole text.
        is_whole = is_first and kept == len(parts)
        yield Sample(
            "summary",
            number,
            build(kept),
            SUMMARY_TOKENS,
            answers=(text.summary,) if text.summary and is_whole else (),
            about={"text": text.text_id, "whole": is_whole},
        )


TASKS = (
    Task(
        "continuation",
        "top-1 agreement and KL to full KV on decode steps of a text that goes on",
        make_continuation,
        score_measured,
    ),
    Task(
        "summary",
        "ROUGE-L with the summary of full KV, and with a reference where a text has one",
        make_summary,
        score_summary,
    ),
)
