"""The ops on rows: checks of shapes and types, and dispatch by device.

Letters in shapes are those of ``core``. A row code (``core.row_code``) names a row or ``NO_ROW``.
"""

from __future__ import annotations

from types import ModuleType

import torch

from arkv_sglang.core import Arena
from arkv_sglang.kernels import reference
from arkv_sglang.kernels.checks import (
    NaNError,
    check_dtype,
    check_float,
    check_kv,
    check_queries,
    check_rows,
    check_shape,
    output_like,
)
from arkv_sglang.kernels.reference import WindowStatistics

__all__ = [
    "NaNError",
    "WindowStatistics",
    "decode_attention",
    "dequantize",
    "extend_attention",
    "move_rows",
    "quantize",
    "read_rows",
    "require_numbers",
    "window_statistics",
    "write_rows",
]

_IMPLEMENTATIONS: dict[str, ModuleType] = {"cpu": reference, "cuda": reference}


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize ``x`` [..., H, D] to e4m3 bytes [..., H, D] and scales [..., H], both uint8.

    A value is its e4m3 byte times ``2**(scale - 127)``, the smallest power of two that holds
    the head vector. What is beyond the format saturates, infinities too. Raises
    ``NaNError``. Nothing is mutated.
    """
    check_float("x", x)
    return _implementation(x).quantize(x)


def dequantize(data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values [..., H, D] in ``dtype`` of what ``quantize`` returned. Nothing is mutated."""
    check_dtype("data", data, torch.uint8)
    check_dtype("scale", scale, torch.uint8)
    check_shape("scale", scale, tuple(data.shape[:-1]))
    return _implementation(data).dequantize(data, scale, dtype)


def write_rows(arena: Arena, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store ``k``, ``v`` [N, H, D] as the rows int32 [N] of ``arena``, which is mutated.

    Original rows are stored in bf16, quantized rows as by ``quantize``; ``NO_ROW`` is
    skipped. Live codes must name different units.
    """
    check_rows("rows", rows, dims=1)
    check_kv(arena, rows.numel(), k, v)
    _implementation(arena.k).write_rows(arena, rows, k, v)


def read_rows(
    arena: Arena, rows: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [..., H, D] in ``dtype`` of ``rows``, int32 [...]. Nothing is mutated.

    ``NO_ROW`` reads as zeros.
    """
    check_rows("rows", rows)
    return _implementation(arena.k).read_rows(arena, rows, dtype)


def move_rows(arena: Arena, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Move the rows ``src`` to ``dst``, int32 [N] each, in ``arena`` (mutated).

    Bytes and scales are copied within a tier, and original rows are quantized into quantized
    ones; the other way raises ``ValueError``. ``NO_ROW`` must stand at the same places in
    both. All rows are read before any is written, so ``src`` and ``dst`` may share units; the
    units of ``dst`` must differ from each other.
    """
    check_rows("src", src, dims=1)
    check_rows("dst", dst, dims=1)
    check_shape("dst", dst, tuple(src.shape))
    _implementation(arena.k).move_rows(arena, src, dst)


def require_numbers(arena: Arena, rows: torch.Tensor) -> None:
    """Raise ``NaNError`` unless the original rows int32 [N] hold numbers. Nothing is mutated.

    For what is done in many steps and must not fail between two of them.
    """
    check_rows("rows", rows, dims=1)
    _implementation(arena.k).require_numbers(arena, rows)


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arena: Arena,
    prefix_rows: torch.Tensor,
    prefix_lens: list[int],
    extend_lens: list[int],
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention [T, Hq, D] of the chunks of several requests, one after the other in T.

    ``q`` [T, Hq, D], ``k``, ``v`` [T, H, D], any float dtype: the chunks, ``extend_lens``
    tokens each. ``prefix_rows`` int32 [sum of prefix_lens]: the rows before each chunk, of
    any tier, none missing. A query sees its whole prefix, and its chunk up to itself. Writes
    ``out`` (made like ``q`` if None) only.
    """
    geometry = arena.geometry
    check_queries(q, sum(extend_lens), geometry.num_kv_heads, geometry.head_dim)
    check_kv(arena, sum(extend_lens), k, v)
    check_rows("prefix_rows", prefix_rows, dims=1)
    check_shape("prefix_rows", prefix_rows, (sum(prefix_lens),))
    if len(prefix_lens) != len(extend_lens):
        raise ValueError(
            f"prefix_lens must have one length per chunk, got {len(prefix_lens)} lengths."
        )
    out = output_like(q, out)
    return _implementation(q).extend_attention(
        q, k, v, arena, prefix_rows, prefix_lens, extend_lens, scale, out
    )


def decode_attention(
    q: torch.Tensor,
    arena: Arena,
    kv_rows: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_lens: list[int],
    scale: float,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [B, Hq, D] of one query per request, and each row's probability, fp32 [total].

    ``q`` [B, Hq, D], any float dtype. ``kv_rows`` int32 [total]: the rows of all requests,
    request b's at ``kv_indptr[b]:kv_indptr[b + 1]`` (int [B + 1]; ``kv_lens`` has the same
    lengths on the host), in any order and of any tiers. ``NO_ROW`` is not attended to and has
    probability 0; a request of no rows gets zeros. The probability is the mean over query
    heads: it sums to 1 per request. Writes ``out`` (made if None) only.
    """
    geometry = arena.geometry
    check_queries(q, len(kv_lens), geometry.num_kv_heads, geometry.head_dim)
    check_rows("kv_rows", kv_rows, dims=1)
    check_shape("kv_rows", kv_rows, (sum(kv_lens),))
    check_shape("kv_indptr", kv_indptr, (len(kv_lens) + 1,))
    out = output_like(q, out)
    return _implementation(q).decode_attention(q, arena, kv_rows, kv_indptr, kv_lens, scale, out)


def window_statistics(q: torch.Tensor, k: torch.Tensor, scale: float) -> WindowStatistics:
    """Statistics of the attention of the last queries ``q`` [W, Hq, D] over ``k`` [T, H, D].

    The last W keys are the queries' own: query i sees the keys up to ``T - W + i``. Queries
    that would see none (W above T) are left out. Any float dtype; nothing is mutated.
    """
    check_float("k", k)
    if k.dim() != 3 or 0 in k.shape:
        raise ValueError(f"k must have three dimensions, none empty, got {list(k.shape)}.")
    check_queries(q, q.shape[0], k.shape[1], k.shape[2])
    if q.shape[0] == 0:
        raise ValueError("q must have at least one query, got none.")
    return _implementation(q).window_statistics(q, k, scale)


def _implementation(x: torch.Tensor) -> ModuleType:
    if x.device.type not in _IMPLEMENTATIONS:
        raise ValueError(f"device must be one of {sorted(_IMPLEMENTATIONS)}, got {x.device.type}.")
    return _IMPLEMENTATIONS[x.device.type]
