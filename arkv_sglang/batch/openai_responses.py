"""Rows of the output table as OpenAI's batch output: one JSON line per request."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from arkv_sglang.batch.config import InputConfig, JobConfig
from arkv_sglang.batch.folder import RESPONSES
from arkv_sglang.batch.inputs import find_files
from arkv_sglang.batch.openai_requests import COMPLETIONS
from arkv_sglang.batch.records import read_jsonl, read_records
from arkv_sglang.batch.types import ERROR, INVALID, OK, TOO_LONG, RunFailed
from arkv_sglang.config import ConfigError

COLUMNS = (
    *("doc_id", "status", "error", "summary", "finish_reason"),
    *("prompt_tokens", "output_tokens", "cached_tokens"),
)
CODES = {
    TOO_LONG: "context_length_exceeded",
    INVALID: "invalid_request",
    ERROR: "server_error",
}


def responses(config: JobConfig, table: pa.Table) -> Iterator[bytes]:
    """The lines of responses.jsonl, of a table with COLUMNS. Reads the input's requests again.
    Raises RunFailed."""
    try:
        completions = _completion_ids(config.input)
    except ConfigError as error:
        raise RunFailed(f"{RESPONSES} cannot be written: {error}") from None
    rows = (row for batch in table.to_batches(max_chunksize=1000) for row in batch.to_pylist())
    return response_lines(rows, completions, config.model_name, int(time.time()))


def _completion_ids(config: InputConfig) -> set[str]:
    """The custom_ids of the requests that are no chats: rows do not say it. Raises ConfigError."""
    files = find_files(config).files
    urls: dict[str, Any] = {}
    for _, record in read_records(files, partial(read_jsonl, config.max_document_mib)):
        if isinstance(record, dict):
            # An id that is used again is an error row under another name.
            urls.setdefault(str(record.get("custom_id")), record.get("url"))
    return {custom_id for custom_id, url in urls.items() if url == COMPLETIONS}


def response_lines(
    rows: Iterable[Mapping[str, Any]], completions: Collection[str], model: str, created: int
) -> Iterator[bytes]:
    """One line per row, which has COLUMNS. ``completions`` are the ids of those that are no chats;
    ``created`` is in seconds since 1970."""
    for row in rows:
        custom_id, number = row["doc_id"], hashlib.sha256(row["doc_id"].encode()).hexdigest()[:24]
        line: dict[str, Any] = {
            "id": f"batch_req_{number}",
            "custom_id": custom_id,
            "response": None,
            "error": None,
        }
        if row["status"] == OK:
            body = (_completion if custom_id in completions else _chat)(number, row)
            body |= {"created": created, "model": model, "usage": _usage(row)}
            line["response"] = {"status_code": 200, "request_id": f"req_{number}", "body": body}
        else:
            code = CODES.get(row["status"], row["status"])
            line["error"] = {"code": code, "message": row["error"]}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _chat(number: str, row: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": row["summary"], "refusal": None}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "choices": [_choice(row, message=message)],
    }


def _completion(number: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"cmpl-{number}",
        "object": "text_completion",
        "choices": [_choice(row, text=row["summary"])],
    }


def _choice(row: Mapping[str, Any], **answer: Any) -> dict[str, Any]:
    return {"index": 0, **answer, "logprobs": None, "finish_reason": row["finish_reason"]}


def _usage(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["output_tokens"],
        "total_tokens": row["prompt_tokens"] + row["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": row["cached_tokens"]},
    }
