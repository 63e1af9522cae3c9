"""What a document in several requests will take, by cutting it for real, without an engine."""

from __future__ import annotations

from dataclasses import dataclass

from arkv_sglang.batch.task import Task
from arkv_sglang.batch.types import PartBuilder, Result

_WORD = " the"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """``prompt_tokens``: of each request."""

    n_chunks: int
    prompt_tokens: list[int]


def rehearse(task: Task, prompts: PartBuilder, max_new_tokens: int) -> Rehearsal:
    """As if every answer were as long as it may be, so that a run takes no more. Raises what the
    task does."""
    steps = task.advance()
    many = len(prompts.token_starts(_WORD * max_new_tokens))
    text = _WORD * max(1, max_new_tokens * max_new_tokens // many)
    answer = Result(text, 0, max_new_tokens, 0, "length", 0.0, 0.0)
    prompt_tokens: list[int] = []
    while steps:
        for step in steps:
            prompt_tokens.append(step.request.prompt_tokens)
            task.take(step, answer, engine="")
        steps = task.advance()
    return Rehearsal(task.answered().n_chunks or 0, prompt_tokens)
