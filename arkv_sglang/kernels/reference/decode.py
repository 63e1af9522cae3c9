"""Attention of one query per request over its rows in the arena, with each row's probability.

Per tier, the rows stand in blocks of one request (see ``layout``). Blocks are dequantized and
multiplied a few at a time, while they are in the core's cache; scales go into logits and
probabilities, not into rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from arkv_sglang.core import (
    ROW_UNITS,
    STORED_TIERS,
    Arena,
    Geometry,
    Tier,
    row_tier,
    row_unit,
)
from arkv_sglang.kernels.reference.e4m3 import HALF_BIAS_GAP, power_of_two, widen
from arkv_sglang.kernels.reference.layout import BLOCK, BlockLayout, block_layout
from arkv_sglang.kernels.reference.rows import sole_tier

CHUNK_BYTES = 1 << 20
"""fp32 bytes of the blocks that are worked on at a time."""


@dataclass(frozen=True)
class _Part:
    """The rows of one tier, in N blocks. Index tensors are int64.

    ``positions``: where they are in kv_rows; None: they are all of it.
    ``units`` [N * BLOCK]: where they are in the arena.
    """

    tier: Tier
    positions: torch.Tensor | None
    layout: BlockLayout
    units: torch.Tensor


def decode_attention(
    q: torch.Tensor,
    arena: Arena,
    kv_rows: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_lens: list[int],
    scale: float,
    out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, num_heads, head_dim = q.shape
    num_kv_heads = arena.geometry.num_kv_heads
    queries = (q.float() * scale).view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
    parts = _parts(kv_rows, kv_indptr, kv_lens)
    weights = [_logits(queries, arena, part) for part in parts]
    _softmax(weights, parts, batch)

    probs = torch.zeros(kv_rows.numel(), dtype=torch.float32, device=q.device)
    result = torch.zeros_like(queries)
    for part, weight in zip(parts, weights, strict=True):
        mean = weight.view(-1, num_heads, BLOCK).mean(1).view(-1)
        by_row = mean.index_select(0, part.layout.places)
        probs[slice(None) if part.positions is None else part.positions] = by_row
        result.index_add_(0, part.layout.request, _weighted_values(weight, arena, part))
    out.copy_(result.view(q.shape))
    return out, probs


def _parts(rows: torch.Tensor, indptr: torch.Tensor, lens: list[int]) -> list[_Part]:
    if rows.numel() == 0:
        return []
    sole = sole_tier(rows)
    if sole is not None:
        return [] if sole == Tier.EVICTED else [_part(rows, sole, None, lens)]
    parts = []
    tiers = row_tier(rows)
    for tier in STORED_TIERS:
        positions = (tiers == tier).nonzero().squeeze(1)
        if positions.numel():
            tier_lens = torch.searchsorted(positions, indptr.long()).diff().tolist()
            parts.append(_part(rows[positions], tier, positions, tier_lens))
    return parts


def _part(rows: torch.Tensor, tier: Tier, positions: torch.Tensor | None, lens: list[int]) -> _Part:
    layout = block_layout(tuple(lens), rows.device)
    return _Part(tier, positions, layout, row_unit(rows.index_select(0, layout.source)))


def _logits(queries: torch.Tensor, arena: Arena, part: _Part) -> torch.Tensor:
    """Logits [N, H, G, BLOCK], minus infinity at the padding."""
    num_kv_heads, group, head_dim = queries.shape[1:]
    block_queries = queries.index_select(0, part.layout.request).view(-1, group, head_dim)
    logits = block_queries.new_empty(block_queries.shape[0], group, BLOCK)
    start = 0
    for keys in _blocks(arena.k, arena, part):
        span = slice(start, start := start + keys.shape[0])
        torch.bmm(block_queries[span], keys.transpose(1, 2), out=logits[span])
    logits = logits.view(-1, num_kv_heads, group, BLOCK)
    if part.tier == Tier.QUANTIZED:
        return torch.addcmul(part.layout.bias, logits, _factors(arena.k_scale, part))
    return logits.add_(part.layout.bias)


def _softmax(weights: list[torch.Tensor], parts: list[_Part], batch: int) -> None:
    """Turn the logits of all parts into probabilities, in place."""
    if not weights:
        return
    top = weights[0].new_full((batch, *weights[0].shape[1:3]), float("-inf"))
    total = torch.zeros_like(top)
    for weight, part in zip(weights, parts, strict=True):
        peaks = weight.amax(-1)
        owners = part.layout.request[:, None, None].expand_as(peaks)
        top.scatter_reduce_(0, owners, peaks, "amax")
    for weight, part in zip(weights, parts, strict=True):
        weight.sub_(top[part.layout.request].unsqueeze(-1)).exp_()
        total.index_add_(0, part.layout.request, weight.sum(-1))
    for weight, part in zip(weights, parts, strict=True):
        weight.div_(total[part.layout.request].unsqueeze(-1))


def _weighted_values(weight: torch.Tensor, arena: Arena, part: _Part) -> torch.Tensor:
    """Sums [N, H, G, D] of the blocks' values times ``weight`` [N, H, G, BLOCK] (overwritten)."""
    num_blocks, num_kv_heads, group, _ = weight.shape
    if part.tier == Tier.QUANTIZED:
        weight *= _factors(arena.v_scale, part)
    flat = weight.view(-1, group, BLOCK)
    sums = flat.new_empty(flat.shape[0], group, arena.geometry.head_dim)
    start = 0
    for values in _blocks(arena.v, arena, part):
        span = slice(start, start := start + values.shape[0])
        torch.bmm(flat[span], values, out=sums[span])
    return sums.view(num_blocks, num_kv_heads, group, -1)


def _factors(scales: torch.Tensor, part: _Part) -> torch.Tensor:
    """fp32 [N, H, 1, BLOCK]: what the widened e4m3 values of each row are to be multiplied by."""
    by_row = scales.index_select(0, part.units).view(part.layout.num_blocks, BLOCK, -1)
    by_head = by_row.transpose(1, 2).contiguous().unsqueeze(2)
    return power_of_two(by_head.to(torch.int32) + HALF_BIAS_GAP)


class _Scratch:
    """Buffers for ``n`` blocks on their way from the arena's bytes to fp32."""

    def __init__(self, n: int, tier: Tier, geometry: Geometry, words: torch.Tensor) -> None:
        shape = (n, geometry.num_kv_heads, BLOCK, geometry.head_dim)
        self.raw = words.new_empty(n * BLOCK, words.shape[1])
        stored = self.raw.view(torch.int8 if tier == Tier.QUANTIZED else torch.bfloat16)
        self.by_head = stored.view(n, BLOCK, *shape[1::2]).transpose(1, 2)
        self.bits = words.new_empty(shape if tier == Tier.QUANTIZED else 0, dtype=torch.int16)
        self.values = words.new_empty(shape, dtype=torch.float32)

    def convert(self) -> torch.Tensor:
        """fp32 [n * H, BLOCK, D] of ``raw``."""
        rows = widen(self.by_head, self.bits) if self.bits.numel() else self.by_head
        return self.values.copy_(rows).flatten(0, 1)


def _blocks(buffer: torch.Tensor, arena: Arena, part: _Part) -> Iterator[torch.Tensor]:
    """Yield fp32 [n, BLOCK, D] for the N * H block-heads in turn; the next overwrites the last."""
    geometry, row_units = arena.geometry, ROW_UNITS[part.tier]
    words = _in_words(buffer.view(-1, buffer.shape[1] * row_units))
    rows = part.units // row_units
    step = max(CHUNK_BYTES // (BLOCK * geometry.num_kv_heads * geometry.head_dim * 4), 1)
    scratch = None
    for chunk in rows.split(step * BLOCK):
        if scratch is None or scratch.raw.shape[0] != chunk.numel():
            scratch = _Scratch(chunk.numel() // BLOCK, part.tier, geometry, words)
        torch.index_select(words, 0, chunk, out=scratch.raw)
        yield scratch.convert()


def _in_words(rows: torch.Tensor) -> torch.Tensor:
    """uint8 ``rows`` viewed in the widest integers that divide them: they gather faster."""
    for word in (torch.int64, torch.int32, torch.int16):
        if rows.shape[1] % word.itemsize == 0:
            return rows.view(word)
    return rows
