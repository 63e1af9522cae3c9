"""Checks of what callers pass in. Shapes and types only: no check reads a tensor's values."""

from __future__ import annotations

import torch

from arkv_sglang.core import Arena


class NaNError(ValueError):
    """Rows hold NaN where they are to be quantized."""


def check_dtype(name: str, x: torch.Tensor, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {x.dtype}.")


def check_float(name: str, x: torch.Tensor) -> None:
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"{name} must be bfloat16, float16 or float32, got {x.dtype}.")


def check_shape(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}.")


def check_rows(name: str, rows: torch.Tensor, dims: int | None = None) -> None:
    check_dtype(name, rows, torch.int32)
    if dims is not None and rows.dim() != dims:
        raise ValueError(f"{name} must have {dims} dimension, got {rows.dim()}.")


def check_queries(q: torch.Tensor, num_queries: int, num_kv_heads: int, head_dim: int) -> None:
    check_float("q", q)
    if q.dim() != 3 or q.shape[0] != num_queries or q.shape[2] != head_dim:
        raise ValueError(f"q must have shape [{num_queries}, Hq, {head_dim}], got {list(q.shape)}.")
    if q.shape[1] == 0 or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q must have a multiple of {num_kv_heads} heads (the KV heads), got {q.shape[1]}."
        )


def check_kv(arena: Arena, num_rows: int, k: torch.Tensor, v: torch.Tensor) -> None:
    geometry = arena.geometry
    for name, x in (("k", k), ("v", v)):
        check_float(name, x)
        check_shape(name, x, (num_rows, geometry.num_kv_heads, geometry.head_dim))


def output_like(q: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    check_shape("out", out, tuple(q.shape))
    check_float("out", out)
    return out
