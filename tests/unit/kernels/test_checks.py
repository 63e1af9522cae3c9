"""What callers may not pass in: one sentence with the argument, the rule and what came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from arkv_sglang.core import Arena, Geometry
from arkv_sglang.kernels import api

ARENA = Arena.allocate(Geometry(1, 2, 8), 16, "cpu")
ROWS = torch.zeros(3, dtype=torch.int32)
KV, Q = torch.zeros(3, 2, 8), torch.zeros(3, 4, 8)
INDPTR = torch.tensor([0, 1, 2, 3])

CASES: list[tuple[str, Callable[[], object], str]] = [
    ("int", lambda: api.quantize(KV.int()), "x must be bfloat16, float16 or float32"),
    ("fp64", lambda: api.quantize(KV.double()), "x must be bfloat16, float16 or float32"),
    (
        "scales",
        lambda: api.dequantize(KV.byte(), KV.byte(), torch.float32),
        r"scale must have shape \[3, 2\], got \[3, 2, 8\]",
    ),
    ("codes", lambda: api.write_rows(ARENA, ROWS.long(), KV, KV), "rows must be torch.int32"),
    ("dims", lambda: api.write_rows(ARENA, ROWS[None], KV, KV), "rows must have 1 dimension"),
    ("v", lambda: api.write_rows(ARENA, ROWS, KV, KV[:2]), r"v must have shape \[3, 2, 8\]"),
    ("dst", lambda: api.move_rows(ARENA, ROWS, ROWS[:2]), r"dst must have shape \[3\]"),
    (
        "heads",
        lambda: api.decode_attention(Q[:, :3], ARENA, ROWS, INDPTR, [1, 1, 1], 1.0),
        r"q must have a multiple of 2 heads \(the KV heads\), got 3",
    ),
    (
        "head_dim",
        lambda: api.decode_attention(Q[..., :4], ARENA, ROWS, INDPTR, [1, 1, 1], 1.0),
        r"q must have shape \[3, Hq, 8\], got \[3, 4, 4\]",
    ),
    (
        "lens",
        lambda: api.decode_attention(Q, ARENA, ROWS, INDPTR, [1, 1, 2], 1.0),
        r"kv_rows must have shape \[4\]",
    ),
    (
        "out",
        lambda: api.decode_attention(Q, ARENA, ROWS, INDPTR, [1, 1, 1], 1.0, out=Q[:2]),
        r"out must have shape \[3, 4, 8\]",
    ),
    (
        "chunks",
        lambda: api.extend_attention(Q, KV, KV, ARENA, ROWS, [3], [1, 2], 1.0),
        "prefix_lens must have one length per chunk",
    ),
    (
        "prefix",
        lambda: api.extend_attention(Q, KV, KV, ARENA, ROWS, [2], [3], 1.0),
        r"prefix_rows must have shape \[2\]",
    ),
    ("keys", lambda: api.window_statistics(Q, KV[:0], 1.0), "k must have three dimensions"),
    ("queries", lambda: api.window_statistics(Q[:0], KV, 1.0), "q must have at least one query"),
    ("device", lambda: api.quantize(KV.to("meta")), "device must be one of"),
]


@pytest.mark.parametrize(("call", "sentence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence) as error:
        call()
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
