"""The nouns that every layer of the package shares: tiers, geometry, row codes and plans.

Letters in shapes, everywhere in the package: L layers, B requests, T tokens, W window queries, N
rows, Hq query heads, H key/value heads of this rank, D head dim, U arena units, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

NO_ROW = -1
"""Row code of a token that has no row (evicted, or never written)."""

_TIER_BITS = 2


class Tier(IntEnum):
    """What a token's row is stored as. Stored tiers are in order of size, the largest first."""

    EVICTED = -1
    ORIGINAL = 0
    QUANTIZED = 1


STORED_TIERS = (Tier.ORIGINAL, Tier.QUANTIZED)
ROW_UNITS = {Tier.ORIGINAL: 2, Tier.QUANTIZED: 1}
"""Units of a row by tier: powers of two, so that a buddy system serves them all."""


def row_code(unit: torch.Tensor, tier: torch.Tensor | int) -> torch.Tensor:
    """Pack ``unit`` (first unit of the row) and ``tier`` into int32 row codes."""
    return ((unit << _TIER_BITS) | tier).to(torch.int32)


def row_unit(rows: torch.Tensor) -> torch.Tensor:
    """First arena unit of each row, int64. Undefined for ``NO_ROW``."""
    return (rows >> _TIER_BITS).long()


def row_tier(rows: torch.Tensor) -> torch.Tensor:
    """Tier of each row as int8; ``Tier.EVICTED`` for ``NO_ROW``."""
    tier = (rows & ((1 << _TIER_BITS) - 1)).to(torch.int8)
    return torch.where(rows < 0, torch.full_like(tier, Tier.EVICTED), tier)


@dataclass(frozen=True)
class Geometry:
    """Shape and byte counts of one rank's KV rows."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit in the K and V arenas together, without scales."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one quantized row: one per head, K and V apart."""
        return 2 * self.num_kv_heads

    def row_bytes(self, tier: Tier) -> int:
        """Bytes that one row of one layer costs in ``tier``, scales included."""
        if tier == Tier.EVICTED:
            return 0
        scales = self.scale_bytes if tier == Tier.QUANTIZED else 0
        return ROW_UNITS[tier] * self.unit_bytes + scales

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers as stock SGLang stores it (bf16)."""
        return self.num_layers * self.row_bytes(Tier.ORIGINAL)

    @property
    def token_units(self) -> int:
        """Arena units of one bf16 token in all layers."""
        return self.num_layers * ROW_UNITS[Tier.ORIGINAL]


@dataclass(frozen=True)
class Arena:
    """K and V bytes in units of one fp8 row, and the power-of-two scales of the fp8 rows.

    ``k``, ``v``: uint8 [U, H * D]. ``k_scale``, ``v_scale``: uint8 [U, H], biased exponents s of a
    scale 2**(s - 127). A bf16 row is an aligned pair of units. Storage owns the tensors; kernels
    read and write them.
    """

    geometry: Geometry
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor

    @classmethod
    def allocate(cls, geometry: Geometry, num_units: int, device: torch.device | str) -> Arena:
        """Zeroed arena of ``num_units`` units (rounded down to whole pairs)."""
        units = num_units - num_units % ROW_UNITS[Tier.ORIGINAL]
        width, heads = geometry.num_kv_heads * geometry.head_dim, geometry.num_kv_heads

        def zeros(columns: int) -> torch.Tensor:
            return torch.zeros(units, columns, dtype=torch.uint8, device=device)

        return cls(geometry, zeros(width), zeros(width), zeros(heads), zeros(heads))

    @property
    def num_units(self) -> int:
        return self.k.shape[0]

    def _as(self, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        g = self.geometry
        return buffer.view(dtype).view(-1, g.num_kv_heads, g.head_dim)

    @property
    def k_original(self) -> torch.Tensor:
        """bf16 [U / 2, H, D]: the same bytes as ``k``."""
        return self._as(self.k.view(self.num_units // 2, -1), torch.bfloat16)

    @property
    def v_original(self) -> torch.Tensor:
        return self._as(self.v.view(self.num_units // 2, -1), torch.bfloat16)

    @property
    def k_quantized(self) -> torch.Tensor:
        """float8_e4m3fn [U, H, D]: the same bytes as ``k``."""
        return self._as(self.k, torch.float8_e4m3fn)

    @property
    def v_quantized(self) -> torch.Tensor:
        return self._as(self.v, torch.float8_e4m3fn)


@dataclass(frozen=True)
class TierPlan:
    """Which candidate token gets which tier, per layer. Made by a policy, applied by the store.

    ``tiers``: int8 [L, N], values of ``Tier``. N candidates in the caller's order: prompt slots, or
    a view's rows.
    """

    tiers: torch.Tensor

    def num_rows(self) -> dict[Tier, int]:
        """Rows of each stored tier over all layers (a host sync on a device plan)."""
        return {tier: int((self.tiers == tier).sum()) for tier in STORED_TIERS}

    def num_units(self) -> int:
        """Arena units that the planned rows take."""
        return sum(ROW_UNITS[tier] * n for tier, n in self.num_rows().items())
