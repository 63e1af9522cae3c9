"""Answers that earlier attempts got for pieces of documents which they did not finish."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow.compute as pc

from arkv_sglang.batch.folder import CHUNKS, OutputFolder
from arkv_sglang.batch.resume import Key
from arkv_sglang.batch.schema import CHUNK_SCHEMA
from arkv_sglang.batch.task import Answer, Recall, recall_nothing
from arkv_sglang.batch.types import KV_KEYS, Result


def read_answers(folder: OutputFolder, config_hash: str, done: Collection[Key]) -> Recall:
    """What the folder has for a step of a document under this configuration, if its prompt is the
    same. Documents that are done are left out. Raises RunFailed."""
    parts = folder.parts(CHUNKS)
    if not parts:
        return recall_nothing
    answers: dict[tuple[str, int, int, str], Answer] = {}
    own = pc.field("config_hash") == config_hash
    with folder.reading():
        for batch in folder.rows(parts, CHUNK_SCHEMA).to_batches(filter=own):
            for row in batch.to_pylist():
                if (row["doc_id"], row["doc_hash"]) not in done:
                    place = (row["doc_id"], row["level"], row["index"])
                    answers[*place, row["prompt_hash"]] = _answer(row)
    return lambda step: answers.get(
        (step.request.doc_id, step.level, step.index, step.request.digest())
    )


def _answer(row: dict[str, Any]) -> Answer:
    kv = {key: row[f"kv_{key}"] for key in KV_KEYS if row[f"kv_{key}"] is not None}
    return Answer(
        row["engine"],
        Result(
            text=row["summary"],
            prompt_tokens=row["prompt_tokens"],
            output_tokens=row["output_tokens"],
            cached_tokens=row["cached_tokens"],
            finish_reason=row["finish_reason"],
            ttft_s=row["ttft_s"],
            e2e_s=row["e2e_s"],
            kv=kv,
        ),
    )
