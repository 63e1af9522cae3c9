"""The columns of the output tables, as docs/batch.md documents them."""

from __future__ import annotations

import pyarrow as pa

from arkv_sglang.batch.types import KV_KEYS

_STAMP = [
    pa.field("doc_hash", pa.string(), nullable=False),
    pa.field("config_hash", pa.string(), nullable=False),
    pa.field("attempt", pa.string(), nullable=False),
]

ROW_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("summary", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("strategy", pa.string()),
        pa.field("n_chunks", pa.int64()),
        pa.field("truncated", pa.bool_()),
        pa.field("n_cut_short", pa.int64()),
        pa.field("ttft_s", pa.float64()),
        pa.field("e2e_s", pa.float64()),
        pa.field("engine", pa.string()),
        pa.field("death_log", pa.list_(pa.string())),
        *(pa.field(f"kv_{key}", pa.int64()) for key in KV_KEYS),
        *_STAMP,
    ]
)

CHUNK_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("level", pa.int64(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("begin", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("prompt_hash", pa.string(), nullable=False),
        pa.field("summary", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("cached_tokens", pa.int64(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("ttft_s", pa.float64(), nullable=False),
        pa.field("e2e_s", pa.float64(), nullable=False),
        pa.field("engine", pa.string(), nullable=False),
        *(pa.field(f"kv_{key}", pa.int64()) for key in KV_KEYS),
        *_STAMP,
    ]
)

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("engine", pa.string()),
        pa.field("death_log", pa.list_(pa.string())),
        pa.field("prompt_tokens", pa.int64()),
        *_STAMP,
    ]
)

AUDIT_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("rouge_l", pa.float64()),
        pa.field("is_equal", pa.bool_()),
        pa.field("prefix_ratio", pa.float64()),
        pa.field("length_ratio", pa.float64()),
        pa.field("summary", pa.string(), nullable=False),
        pa.field("full_kv_summary", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("full_kv_output_tokens", pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("full_kv_finish_reason", pa.string()),
        pa.field("kv_bytes", pa.int64()),
        pa.field("kv_bf16_bytes", pa.int64()),
        pa.field("again_summary", pa.string()),
        pa.field("again_cached_tokens", pa.int64()),
        pa.field("again_rouge_l", pa.float64()),
        pa.field("again_is_equal", pa.bool_()),
        pa.field("again_prefix_ratio", pa.float64()),
        pa.field("doc_hash", pa.string(), nullable=False),
        pa.field("config_hash", pa.string(), nullable=False),
        pa.field("full_kv_config_hash", pa.string(), nullable=False),
    ]
)
