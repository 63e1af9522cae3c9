"""From slots to a view: shared rows are copied, owned ones change hands."""

from __future__ import annotations

import torch

from arkv_sglang.core import NO_ROW, Tier, row_tier
from arkv_sglang.storage.row_pool import RowPool
from arkv_sglang.storage.slot_table import SlotTable
from arkv_sglang.storage.tiering import RowCounts, Transitions


def detach_rows(
    pool: RowPool,
    table: SlotTable,
    slots: torch.Tensor,
    target: torch.Tensor,
    shared: torch.Tensor,
    moves: Transitions,
    slot_counts: RowCounts,
) -> torch.Tensor:
    """Row codes int32 [L, n] of a new view, the caller's to place; units suffice, the caller knows.

    ``target`` int8 [L, n] (reachable tiers) of the rows of ``slots``; ``slot_counts`` follow.
    """
    # Owned rows shrink while the slot table still has them: taking units for the copies may move
    # rows about, and each must have an owner then.
    rows = table.get(slots)
    owned_target = torch.where(shared, row_tier(rows), target)
    table.set(slots, pool.retier(rows, owned_target, slot_counts)[0])
    copies = pool.take_like(target.masked_fill(~shared, int(Tier.EVICTED)), moves.copied)
    rows = table.get(slots)
    is_copy = copies >= 0
    pool.move(rows[is_copy], copies[is_copy])
    table.set(slots, torch.where(shared, rows, NO_ROW))
    for tier, n in moves.owned.items():
        slot_counts[tier] -= n
    return torch.where(shared, copies, rows)
