"""Byte and row figures of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arkv_sglang.core import Tier
from arkv_sglang.storage.tiering import RowCounts, units_of

if TYPE_CHECKING:
    from arkv_sglang.storage.store import KVStore


@dataclass(frozen=True)
class StoreUsage:
    """A snapshot of host counters.

    ``arena_bytes`` = ``free_bytes`` + all ``slot_bytes`` + all ``view_bytes``: K and V bytes
    without scales, which are allocated for every unit and stand in ``overhead_bytes`` with the slot
    table, the view lists and the free lists. Totals count rows since the store was made:
    ``rows_evicted_total`` candidates that plans dropped, ``rows_demoted_total`` rows of slots
    turned from ORIGINAL to QUANTIZED, ``rows_moved_total`` rows moved to pair up free units.
    """

    arena_bytes: int
    free_bytes: int
    slot_bytes: dict[Tier, int]
    view_bytes: dict[Tier, int]
    overhead_bytes: dict[str, int]
    rows_evicted_total: int
    rows_demoted_total: int
    rows_moved_total: int

    @property
    def overhead_bytes_total(self) -> int:
        return sum(self.overhead_bytes.values())

    @property
    def overhead_ratio(self) -> float:
        """Overhead over arena."""
        return self.overhead_bytes_total / self.arena_bytes

    @classmethod
    def of(cls, store: KVStore) -> StoreUsage:
        unit = store.geometry.unit_bytes

        def by_tier(rows: RowCounts) -> dict[Tier, int]:
            return {tier: n * units_of(tier) * unit for tier, n in rows.items()}

        return cls(
            arena_bytes=store.num_units * unit,
            free_bytes=store.free_units * unit,
            slot_bytes=by_tier(store.slot_rows_by_tier),
            view_bytes=by_tier(store.view_rows_by_tier),
            overhead_bytes={
                "scales": store.arena.k_scale.nbytes + store.arena.v_scale.nbytes,
                "slot_table": store.table.num_bytes,
                "view_lists": store.lists.num_bytes,
                "free_lists": store.pool.allocator.num_bytes,
            },
            rows_evicted_total=store.rows_evicted_total,
            rows_demoted_total=store.rows_demoted_total,
            rows_moved_total=store.rows_moved_total,
        )
