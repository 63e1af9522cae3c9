"""Each kind of corruption is named, with its numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from arkv_sglang.core import NO_ROW, Geometry, Tier, TierPlan, row_code
from arkv_sglang.storage.store import KVStore

GEOMETRY = Geometry(num_layers=2, num_kv_heads=1, head_dim=8)


@pytest.fixture
def store() -> KVStore:
    """Slots 1 to 4 and one view of two quantized rows a layer; 40 units."""
    store = KVStore(GEOMETRY, 40, 8, "cpu")
    slots = torch.arange(1, 7)
    store.bind_slots(slots)
    plan = TierPlan(torch.full((2, 2), int(Tier.QUANTIZED), dtype=torch.int8))
    zeros = torch.zeros(2, 2)
    store.create_view(slots[4:], plan, slots[4:], zeros, zeros, 1)
    assert store.check_integrity() == []
    return store


def double_owner(store: KVStore) -> None:
    store.table.rows[0, 1] = store.table.rows[1, 2]


def leaked_unit(store: KVStore) -> None:
    store.table.rows[0, 1] = NO_ROW
    store.slot_rows_by_tier[Tier.ORIGINAL] -= 1


def lost_free_unit(store: KVStore) -> None:
    store.pool.allocator.take(1, 1)


def misaligned_pair(store: KVStore) -> None:
    store.table.rows[0, 1] += 4


def misaligned_free_pair(store: KVStore) -> None:
    store.pool.allocator.free_blocks(2)[-1] += 1


def outside(store: KVStore) -> None:
    store.table.rows[0, 1] = row_code(torch.tensor(1000), int(Tier.ORIGINAL))


def wrong_slot_count(store: KVStore) -> None:
    store.slot_rows_by_tier[Tier.ORIGINAL] += 1


def wrong_view_total(store: KVStore) -> None:
    store.view_rows_by_tier[Tier.QUANTIZED] -= 1


def wrong_view_count(store: KVStore) -> None:
    store.lists.live[0].num_rows[Tier.QUANTIZED] = 9


def stray_view_row(store: KVStore) -> None:
    store.lists.rows[1, 200] = store.lists.rows[1, 0]


def overlapping_views(store: KVStore) -> None:
    view = store.lists.add(3)
    view.start = store.lists.live[0].start + 1


def too_wide(store: KVStore) -> None:
    view = store.lists.live[0]
    view.capacity = view.width - 1


def past_the_end(store: KVStore) -> None:
    store.lists.live[0].capacity = 1000


def row_in_padding_slot(store: KVStore) -> None:
    store.table.rows[0, 0] = store.table.rows[0, 1]
    store.table.rows[0, 1] = NO_ROW


@pytest.mark.parametrize(
    ("corrupt", "sentence"),
    [
        (double_owner, "2 units have more than one owner, the first is unit"),
        (double_owner, "2 units have no owner, the first is unit"),
        (leaked_unit, "2 units have no owner, the first is unit"),
        (leaked_unit, "free 20 + slots 14 + views 4 units != 40"),
        (lost_free_unit, "1 units have no owner"),
        (misaligned_pair, "slot table (ORIGINAL): 1 blocks of 2 units are not aligned"),
        (misaligned_free_pair, "free list: 1 blocks of 2 units are not aligned"),
        (
            outside,
            "slot table (ORIGINAL): 1 blocks lie outside of 40 units, the first at unit 1000",
        ),
        (wrong_slot_count, "slot table: 8 ORIGINAL rows found, 9 counted"),
        (wrong_view_total, "views: 4 QUANTIZED rows found, 3 counted"),
        (wrong_view_count, "view 0: 4 QUANTIZED rows found, 9 counted"),
        (stray_view_row, "view lists hold 5 rows, the views' own columns 4"),
        (overlapping_views, "view 1 has columns 1 to 20 and width 0, the columns before it"),
        (too_wide, "view 0 has columns 0 to 1 and width 2"),
        (past_the_end, "views end at column 1000 of 256"),
        (row_in_padding_slot, "the padding slot 0 has 1 rows"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_corruption_is_named(
    store: KVStore, corrupt: Callable[[KVStore], None], sentence: str
) -> None:
    corrupt(store)
    faults = store.check_integrity()
    assert any(sentence in fault for fault in faults), faults
