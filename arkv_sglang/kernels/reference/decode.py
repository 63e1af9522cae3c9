"""Attention of one query per request over its rows in the arena, with each row's probability.

Per tier, the rows stand in blocks of one request (see ``layout``). Blocks are dequantized and
multiplied a few at a time, while they are in the core's cache; scales go into logits and
probabilities, not into rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from arkv_sglang.core import ROW_UNITS, STORED_TIERS, Arena, Tier, row_tier, row_unit
from arkv_sglang.kernels.reference.e4m3 import HALF_BIAS_GAP, power_of_two, widen
from arkv_sglang.kernels.reference.layout import BLOCK, BlockLayout, block_layout

CHUNK_BYTES = 1 << 20
"""fp32 bytes of the blocks that are worked on at a time."""


@dataclass(frozen=True)
class _Part:
    """The rows of one tier, N blocks. ``lines`` [N * H * BLOCK]: their vectors in the arena."""

    tier: Tier
    positions: torch.Tensor | None  # in kv_rows, int64; None: all of them
    layout: BlockLayout
    lines: torch.Tensor


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
    queries = (q.float() * scale).view(batch, num_kv_heads, -1, head_dim)
    parts = _parts(arena, kv_rows, kv_indptr, kv_lens)

    weights = [_logits(queries, arena, part) for part in parts]
    _softmax(weights, parts, batch)

    probs = torch.zeros(kv_rows.numel(), dtype=torch.float32, device=q.device)
    result = torch.zeros_like(queries)
    for part, weight in zip(parts, weights, strict=True):
        blocks = weight.view(part.layout.num_blocks, num_heads, BLOCK)
        by_row = blocks.mean(1).view(-1).index_select(0, part.layout.places)
        probs[slice(None) if part.positions is None else part.positions] = by_row
        result.index_add_(0, part.layout.request, _weighted_values(weight, arena, part))
    out.copy_(result.view_as(out))
    return out, probs


def _parts(arena: Arena, rows: torch.Tensor, indptr: torch.Tensor, lens: list[int]) -> list[_Part]:
    if rows.numel() == 0:
        return []
    tiers = row_tier(rows)
    lowest, highest = (int(x) for x in torch.aminmax(tiers))
    if lowest == highest:
        uniform = Tier(lowest)
        return [] if uniform == Tier.EVICTED else [_part(arena, rows, uniform, None, lens)]
    parts = []
    for tier in STORED_TIERS:
        positions = (tiers == tier).nonzero().squeeze(1)
        if positions.numel():
            tier_lens = torch.searchsorted(positions, indptr.long()).diff().tolist()
            parts.append(_part(arena, rows[positions], tier, positions, tier_lens))
    return parts


def _part(
    arena: Arena, rows: torch.Tensor, tier: Tier, positions: torch.Tensor | None, lens: list[int]
) -> _Part:
    layout = block_layout(tuple(lens), rows.device)
    num_kv_heads = arena.geometry.num_kv_heads
    first_line = row_unit(rows) // ROW_UNITS[tier] * num_kv_heads
    heads = torch.arange(num_kv_heads, device=rows.device)
    lines = first_line[layout.source].unsqueeze(1) + heads[:, None]
    return _Part(tier, positions, layout, lines.view(-1))


def _logits(queries: torch.Tensor, arena: Arena, part: _Part) -> torch.Tensor:
    """Logits [N, H, G, BLOCK], minus infinity at the padding."""
    layout = part.layout
    num_kv_heads, group, head_dim = queries.shape[1:]
    block_queries = queries[layout.request].view(-1, group, head_dim)
    logits = queries.new_empty(layout.num_blocks * num_kv_heads, group, BLOCK)
    for span, keys in _blocks(arena.k, arena, part):
        torch.bmm(block_queries[span], keys.transpose(1, 2), out=logits[span])
    logits = logits.view(-1, num_kv_heads, group, BLOCK)
    if part.tier == Tier.QUANTIZED:
        logits *= _factors(arena.k_scale, part)
    return logits.masked_fill_(layout.padding[:, None, None], float("-inf"))


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
    sums = weight.new_empty(flat.shape[0], group, arena.geometry.head_dim)
    for span, values in _blocks(arena.v, arena, part):
        torch.bmm(flat[span], values, out=sums[span])
    return sums.view(num_blocks, num_kv_heads, group, -1)


def _factors(scales: torch.Tensor, part: _Part) -> torch.Tensor:
    """fp32 [N, H, 1, BLOCK]: what the widened e4m3 values of each row are to be multiplied by."""
    exponents = scales.view(-1).index_select(0, part.lines).to(torch.int32) + HALF_BIAS_GAP
    return power_of_two(exponents).view(part.layout.num_blocks, -1, 1, BLOCK)


def _blocks(
    buffer: torch.Tensor, arena: Arena, part: _Part
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield (span of block-heads, fp32 [n, BLOCK, D]); the next one overwrites the tensor."""
    num_kv_heads, head_dim = arena.geometry.num_kv_heads, arena.geometry.head_dim
    line_bytes = ROW_UNITS[part.tier] * head_dim
    word = next(
        t
        for t in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if line_bytes % t.itemsize == 0
    )
    source = buffer.view(-1, line_bytes).view(word)
    step = max(1, CHUNK_BYTES // (num_kv_heads * BLOCK * head_dim * 4)) * num_kv_heads
    num = part.layout.num_blocks * num_kv_heads
    step = min(step, num)
    raw = source.new_empty(step * BLOCK, source.shape[1])
    half_bits = torch.empty(step * BLOCK, head_dim, dtype=torch.int16, device=buffer.device)
    values = torch.empty(step * BLOCK, head_dim, dtype=torch.float32, device=buffer.device)
    for first in range(0, num, step):
        n = min(step, num - first)
        lines = part.lines[first * BLOCK : (first + n) * BLOCK]
        torch.index_select(source, 0, lines, out=raw[: n * BLOCK])
        if part.tier == Tier.QUANTIZED:
            rows = widen(raw[: n * BLOCK].view(torch.uint8), half_bits[: n * BLOCK])
        else:
            rows = raw[: n * BLOCK].view(torch.bfloat16)
        values[: n * BLOCK].copy_(rows)
        yield slice(first, first + n), values[: n * BLOCK].view(n, BLOCK, head_dim)
