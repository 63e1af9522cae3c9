"""Plain fp64 versions of the ops, and random arenas to try them on."""

from __future__ import annotations

import torch

from arkv_sglang.core import NO_ROW, Arena, Geometry, Tier, row_code
from arkv_sglang.kernels import api

EPS = torch.finfo(torch.float32).eps
BF16_HALF_ULP = 2.0**-8
HEADS = [(1, 1, 8), (2, 1, 16), (9, 3, 64), (8, 2, 24), (4, 4, 128)]
"""(Hq, H, D), odd and even."""


def e4m3(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp64 values of bytes [..., D] with scales [...], by torch's own conversion."""
    exponent = scale.to(torch.float64).unsqueeze(-1) - 127
    return data.view(torch.float8_e4m3fn).to(torch.float64) * 2.0**exponent


def noise_arena(num_kv_heads: int, head_dim: int, num_units: int, seed: int) -> Arena:
    """Arena of random bytes (NaN patterns included), as rows freed by others leave it."""
    generator = torch.Generator().manual_seed(seed)
    arena = Arena.allocate(Geometry(1, num_kv_heads, head_dim), num_units, "cpu")
    for buffer in (arena.k, arena.v, arena.k_scale, arena.v_scale):
        buffer.copy_(torch.randint(0, 256, buffer.shape, generator=generator, dtype=torch.uint8))
    return arena


def place(tiers: list[int], num_units: int, seed: int) -> torch.Tensor:
    """Codes of rows of the given tiers at random units, no two of which overlap."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(num_units // 2, generator=generator)[: len(tiers)] * 2
    tier = torch.tensor(tiers, dtype=torch.int64)
    odd = torch.randint(0, 2, pairs.shape, generator=generator) * (tier == Tier.QUANTIZED)
    codes = row_code(pairs + odd, tier)
    return codes.masked_fill_(tier == Tier.EVICTED, NO_ROW)


def filled(
    tiers: list[int], num_kv_heads: int, head_dim: int, seed: int
) -> tuple[Arena, torch.Tensor]:
    """A noise arena in which normally distributed rows of the given tiers are written."""
    num_units = 2 * len(tiers) + 8
    arena = noise_arena(num_kv_heads, head_dim, num_units, seed)
    rows = place(tiers, num_units, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    k, v = torch.randn(2, len(tiers), num_kv_heads, head_dim, generator=generator)
    api.write_rows(arena, rows, k, v)
    return arena, rows


def read(arena: Arena, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp64 K and V [N, H, D] of rows [N], one row at a time."""
    width = (arena.geometry.num_kv_heads, arena.geometry.head_dim)
    both = []
    for data, scale in ((arena.k, arena.k_scale), (arena.v, arena.v_scale)):
        values = torch.zeros(len(rows), *width, dtype=torch.float64)
        for i, code in enumerate(rows.tolist()):
            unit, tier = code >> 2, code & 3
            if code == NO_ROW:
                continue
            if tier == Tier.ORIGINAL:
                values[i] = data[unit : unit + 2].view(-1).view(torch.bfloat16).view(width).double()
            else:
                values[i] = e4m3(data[unit].view(width), scale[unit])
        both.append(values)
    return both[0], both[1]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """fp64 attention [T, Hq, D] of ``q`` over ``k``, ``v`` [S, H, D] where ``seen`` [T, S].

    Also the probabilities [Hq, T, S], and a bound of the relative error of fp32 probabilities: sums
    of D products for the logits (twice: numerator and sum), S terms for the sum, a few roundings.
    """
    group = q.shape[1] // k.shape[1]
    q = q.double()
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    logits = torch.einsum("thd,shd->hts", q, k) * scale
    probs = logits.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
    size = torch.einsum("thd,shd->hts", q.abs(), k.abs()).amax().item() * abs(scale)
    error = EPS * (2 * (q.shape[2] + 4) * size + k.shape[0] + 16)
    return torch.einsum("hts,shd->thd", probs, v), probs, error
