"""Rows in and out of the arena, and between tiers."""

from __future__ import annotations

import torch

from arkv_sglang.core import ROW_UNITS, Arena, Tier, row_tier, row_unit
from arkv_sglang.kernels.checks import NaNError
from arkv_sglang.kernels.reference.e4m3 import (
    E4M3_MAX,
    HALF_BIAS_GAP,
    power_of_two,
    scale_bytes,
    widen,
)


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    amax = x.abs().amax(-1).to(torch.float32)
    if amax.isnan().any():
        raise NaNError("x must hold numbers, got NaN.")
    scale = scale_bytes(amax)
    scaled = x.to(torch.float32) * power_of_two(254 - scale).unsqueeze(-1)
    data = scaled.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return data.view(torch.uint8), scale.to(torch.uint8)


def dequantize(data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    bits = torch.empty(data.shape, dtype=torch.int16, device=data.device)
    half = widen(data.view(torch.int8), bits)
    factor = power_of_two(scale.to(torch.int32) + HALF_BIAS_GAP)
    return (half.to(torch.float32) * factor.unsqueeze(-1)).to(dtype)


def positions_of(rows: torch.Tensor, tier: Tier) -> torch.Tensor:
    """Positions, int64, of the codes of ``tier`` in flat ``rows``."""
    return (row_tier(rows) == tier).nonzero().squeeze(1)


def sole_tier(rows: torch.Tensor) -> Tier | None:
    """The tier of all of ``rows`` [N >= 1]; None where they differ."""
    lowest, highest = (int(tier) for tier in torch.aminmax(row_tier(rows)))
    return Tier(lowest) if lowest == highest else None


def write_rows(arena: Arena, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    if rows.numel() and sole_tier(rows) == Tier.ORIGINAL:  # as every new row is
        _store_original(arena, rows, k, v)
        return
    quantized = positions_of(rows, Tier.QUANTIZED)
    if quantized.numel():  # first, so that NaN is refused before anything is written
        units = row_unit(rows[quantized])
        _store_quantized(arena, units, quantize(k[quantized]), quantize(v[quantized]))
    original = positions_of(rows, Tier.ORIGINAL)
    if original.numel():
        _store_original(arena, rows[original], k[original], v[original])


def _store_original(arena: Arena, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    pairs = row_unit(rows) // ROW_UNITS[Tier.ORIGINAL]
    arena.k_original.index_copy_(0, pairs, k.to(torch.bfloat16))
    arena.v_original.index_copy_(0, pairs, v.to(torch.bfloat16))


def _store_quantized(
    arena: Arena,
    units: torch.Tensor,
    k: tuple[torch.Tensor, torch.Tensor],
    v: tuple[torch.Tensor, torch.Tensor],
) -> None:
    arena.k.index_copy_(0, units, k[0].flatten(1))
    arena.v.index_copy_(0, units, v[0].flatten(1))
    arena.k_scale.index_copy_(0, units, k[1])
    arena.v_scale.index_copy_(0, units, v[1])


def read_rows(
    arena: Arena, rows: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    flat = rows.flatten()
    geometry = arena.geometry
    shape = (flat.numel(), geometry.num_kv_heads, geometry.head_dim)
    k = torch.zeros(shape, dtype=dtype, device=rows.device)
    v = torch.zeros(shape, dtype=dtype, device=rows.device)
    original = positions_of(flat, Tier.ORIGINAL)
    if original.numel():
        pairs = row_unit(flat[original]) // ROW_UNITS[Tier.ORIGINAL]
        k.index_copy_(0, original, arena.k_original.index_select(0, pairs).to(dtype))
        v.index_copy_(0, original, arena.v_original.index_select(0, pairs).to(dtype))
    quantized = positions_of(flat, Tier.QUANTIZED)
    if quantized.numel():
        units = row_unit(flat[quantized])
        for into, data, scale in ((k, arena.k, arena.k_scale), (v, arena.v, arena.v_scale)):
            heads = data.index_select(0, units).view(-1, *shape[1:])
            into.index_copy_(0, quantized, dequantize(heads, scale.index_select(0, units), dtype))
    return k.view(*rows.shape, *shape[1:]), v.view(*rows.shape, *shape[1:])


def move_rows(arena: Arena, src: torch.Tensor, dst: torch.Tensor) -> None:
    src_tier, dst_tier = row_tier(src), row_tier(dst)
    if ((src_tier == Tier.QUANTIZED) & (dst_tier == Tier.ORIGINAL)).any():
        raise ValueError("dst must not be ORIGINAL where src is QUANTIZED, got such a row.")
    if ((src_tier == Tier.EVICTED) != (dst_tier == Tier.EVICTED)).any():
        raise ValueError("src and dst must have NO_ROW at the same places, got one alone.")
    kept = ((src_tier == Tier.ORIGINAL) & (dst_tier == Tier.ORIGINAL)).nonzero().squeeze(1)
    demoted = ((src_tier == Tier.ORIGINAL) & (dst_tier == Tier.QUANTIZED)).nonzero().squeeze(1)
    small = (src_tier == Tier.QUANTIZED).nonzero().squeeze(1)

    # Everything is read before anything is written: src and dst may share units.
    k_kept, v_kept = _read_pairs(arena, src[kept])
    k_demoted, v_demoted = map(quantize, _read_pairs(arena, src[demoted]))
    units = row_unit(src[small])
    buffers = (arena.k, arena.v, arena.k_scale, arena.v_scale)
    moved = [buffer.index_select(0, units) for buffer in buffers]

    pairs = row_unit(dst[kept]) // ROW_UNITS[Tier.ORIGINAL]
    arena.k_original.index_copy_(0, pairs, k_kept)
    arena.v_original.index_copy_(0, pairs, v_kept)
    _store_quantized(arena, row_unit(dst[demoted]), k_demoted, v_demoted)
    for buffer, values in zip(buffers, moved, strict=True):
        buffer.index_copy_(0, row_unit(dst[small]), values)


def require_numbers(arena: Arena, rows: torch.Tensor) -> None:
    for values in _read_pairs(arena, rows):
        if values.isnan().any():
            raise NaNError("rows must hold numbers to be quantized, got NaN.")


def _read_pairs(arena: Arena, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = row_unit(rows) // ROW_UNITS[Tier.ORIGINAL]
    return arena.k_original.index_select(0, pairs), arena.v_original.index_select(0, pairs)
