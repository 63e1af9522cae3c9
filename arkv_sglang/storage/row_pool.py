"""Rows as bytes: taken from the arena, moved, shrunk and freed. Knows no owners."""

from __future__ import annotations

import torch

from arkv_sglang.core import (
    NO_ROW,
    ROW_UNITS,
    STORED_TIERS,
    Arena,
    Geometry,
    Tier,
    row_code,
    row_tier,
    row_unit,
)
from arkv_sglang.kernels import api as kernels
from arkv_sglang.storage.allocator import Relocate, UnitAllocator
from arkv_sglang.storage.tiering import ALL_TIERS, RowCounts, units_of

_MOVE_VALUES_CPU, _MOVE_VALUES = 1 << 18, 1 << 24
"""K (or V) values moved per kernel call. On a CPU the temporaries should stay in its cache."""


class RowPool:
    """The arena and its allocator. Row codes are int32 of any shape, targets int8 of the same."""

    def __init__(
        self, geometry: Geometry, num_units: int, relocate: Relocate, device: torch.device
    ) -> None:
        self.arena = Arena.allocate(geometry, num_units, device)
        values = _MOVE_VALUES_CPU if device.type == "cpu" else _MOVE_VALUES
        sizes = tuple(ROW_UNITS.values())
        # Whole groups of rows that shrink into each other's units: see ``move`` and ``_shrink``.
        groups = values // (geometry.num_kv_heads * geometry.head_dim * max(sizes))
        self._move_rows = max(1, groups) * max(sizes)
        self.allocator = UnitAllocator(self.arena.num_units, sizes, relocate, device)

    def take(self, tier: Tier, n: int) -> torch.Tensor:
        """Fresh rows [n] with arbitrary bytes. Raises ``OutOfUnits``."""
        return row_code(self.allocator.take(ROW_UNITS[tier], n), tier)

    def take_like(self, target: torch.Tensor, counts: RowCounts) -> torch.Tensor:
        """A fresh row of each stored tier in ``target``, ``NO_ROW`` elsewhere; ``counts`` are
        known.

        Larger rows come first: pairing for a smaller size never touches a taken larger row, whose
        owner would not be found yet.
        """
        rows = torch.full_like(target, NO_ROW, dtype=torch.int32)
        for tier in STORED_TIERS:
            if counts[tier]:
                rows[target == tier] = self.take(tier, counts[tier])
        return rows

    def move(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy rows [n] to rows [n] of the same or a smaller tier.

        Targets may overlap sources within each aligned group of as many rows as fit in the largest.
        """
        n = self._move_rows
        for some_src, some_dst in zip(src.split(n), dst.split(n), strict=True):
            kernels.move_rows(self.arena, some_src, some_dst)

    def require_numbers(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Raise ``NaNError`` if a row that ``target`` quantizes holds NaN. Nothing is changed."""
        chosen = rows[(row_tier(rows) == Tier.ORIGINAL) & (target == Tier.QUANTIZED)]
        for some in chosen.split(self._move_rows):
            kernels.require_numbers(self.arena, some)

    def retier(
        self, rows: torch.Tensor, target: torch.Tensor, counts: RowCounts
    ) -> tuple[torch.Tensor, int]:
        """Shrink rows to ``target`` (reachable tiers) in their own units, freeing the others.

        Returns the new codes and the units freed; ``counts`` of the owner follow.
        """
        source = row_tier(rows)
        result = torch.where(target < 0, NO_ROW, rows)
        free = self.allocator.free_units
        for old in STORED_TIERS:
            for new in (to for to in ALL_TIERS if units_of(to) < units_of(old)):
                chosen = (source == old) & (target == new)
                units = row_unit(rows[chosen])
                if not len(units):
                    continue
                counts[old] -= len(units)
                if new == Tier.EVICTED:
                    self.allocator.give(ROW_UNITS[old], units)
                else:
                    result[chosen] = self._shrink(units, old, new)
                    counts[new] += len(units)
        return result, self.allocator.free_units - free

    def _shrink(self, units: torch.Tensor, old: Tier, new: Tier) -> torch.Tensor:
        """Rows at ``units`` int64 [n] become ``new``, packed so that whole old rows come free."""
        size, ratio = ROW_UNITS[old], ROW_UNITS[old] // ROW_UNITS[new]
        whole = len(units) - len(units) % ratio
        groups, rest = units[:whole].view(-1, ratio), units[whole:]
        places = torch.arange(0, size, ROW_UNITS[new], device=units.device)
        packed = torch.cat([(groups[:, :1] + places).flatten(), rest])
        rows = row_code(packed, new)
        self.move(row_code(units, old), rows)
        self.allocator.give(size, groups[:, 1:].flatten())
        self.allocator.give_tails(rest, size, ROW_UNITS[new])
        return rows

    def free(self, rows: torch.Tensor, counts: RowCounts) -> int:
        """Free ``rows`` (any without a row are fine); returns the units freed."""
        return self.retier(rows, torch.full_like(rows, Tier.EVICTED, dtype=torch.int8), counts)[1]


def retarget(rows: torch.Tensor, remap: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewrite, in place, the codes in ``rows`` [n] whose unit moved; returns old and new codes.

    ``remap``: int32 [U], the new unit of each moved one, -1 elsewhere.
    """
    moved_to = remap[row_unit(rows).clamp_min_(0)]
    hit = ((rows >= 0) & (moved_to >= 0)).nonzero().squeeze(1)
    old = rows[hit]
    new = row_code(moved_to[hit], row_tier(old))
    rows[hit] = new
    return old, new
