"""Rows of the output table, one way to make each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from arkv_sglang.batch.types import (
    INVALID,
    KV_KEYS,
    EngineInfo,
    Result,
    Row,
    describe,
)


def invalid(doc_id: str, error: str) -> Row:
    return Row(doc_id, INVALID, error)


def unmade(error: Exception) -> str:
    return f"the prompt cannot be made: {describe(error)}"


def too_long(prompt_tokens: int, limit: int, max_new_tokens: int, info: EngineInfo) -> str:
    """The error of a prompt that an engine cannot take."""
    return (
        f"the prompt has {prompt_tokens} tokens and at most {limit} fit beside "
        f"{max_new_tokens} new ones (context {info.context_tokens}, "
        f"KV memory for {info.longest_tokens} tokens)"
    )


def answered(row: Row, results: Sequence[Result], waited_s: float, engine: str | None) -> Row:
    """``row`` with what came of its document's requests, the last of which is the answer.
    ``waited_s``: from when an engine received the first of them until one received the last."""
    last = results[-1]
    return replace(
        row,
        summary=last.text,
        prompt_tokens=sum(result.prompt_tokens for result in results),
        output_tokens=sum(result.output_tokens for result in results),
        cached_tokens=sum(result.cached_tokens for result in results),
        finish_reason=last.finish_reason,
        truncated=False,
        n_cut_short=sum(result.finish_reason == "length" for result in results[:-1]),
        ttft_s=waited_s + last.ttft_s,
        e2e_s=waited_s + last.e2e_s,
        engine=engine,
        kv=_kv([result.kv for result in results]),
    )


def _kv(requests: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sums over requests, but of peaks the highest: they were not at the same time."""
    figures = {}
    for key in KV_KEYS:
        if values := [kv[key] for kv in requests if key in kv]:
            figures[key] = max(values) if key.startswith("peak_") else sum(values)
    return figures
