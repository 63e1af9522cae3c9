"""Rows of the output table, one way to make each kind."""

from __future__ import annotations

from collections.abc import Sequence

from arkv_sglang.batch.types import (
    ERROR,
    INVALID,
    OK,
    TOO_LONG,
    BadDocument,
    Document,
    EngineInfo,
    PromptBuilder,
    Request,
    Result,
    Row,
    describe,
)


def request_or_invalid(document: Document | BadDocument, prompts: PromptBuilder) -> Request | Row:
    """What a document becomes: a request, or the row that says why it cannot be one."""
    if isinstance(document, BadDocument):
        return invalid(document.doc_id, document.error)
    try:
        return prompts.build(document)
    except Exception as error:
        # The user's template and the model's run on the document, and may raise anything.
        return invalid(document.doc_id, f"the prompt cannot be made: {describe(error)}")


def invalid(doc_id: str, error: str) -> Row:
    return Row(doc_id, INVALID, error)


def failed(
    request: Request, error: str, engine: str | None = None, death_log: Sequence[str] = ()
) -> Row:
    return Row(
        request.doc_id,
        ERROR,
        error,
        prompt_tokens=request.prompt_tokens,
        engine=engine,
        death_log=death_log,
    )


def too_long(request: Request, limit: int, max_new_tokens: int, info: EngineInfo) -> Row:
    error = (
        f"the prompt has {request.prompt_tokens} tokens and at most {limit} fit beside "
        f"{max_new_tokens} new ones (context {info.context_tokens}, "
        f"KV capacity {info.capacity_tokens} tokens)"
    )
    return Row(request.doc_id, TOO_LONG, error, prompt_tokens=request.prompt_tokens)


def answered(request: Request, result: Result, engine: str) -> Row:
    return Row(
        request.doc_id,
        OK,
        summary=result.text,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        cached_tokens=result.cached_tokens,
        finish_reason=result.finish_reason,
        ttft_s=result.ttft_s,
        e2e_s=result.e2e_s,
        engine=engine,
        kv=result.kv,
    )
