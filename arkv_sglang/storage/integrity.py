"""The equations of a store: every unit has one owner, and host counts equal device data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from arkv_sglang.core import ROW_UNITS, STORED_TIERS, row_tier, row_unit
from arkv_sglang.storage.tiering import RowCounts

if TYPE_CHECKING:
    from arkv_sglang.storage.store import KVStore


def find_faults(store: KVStore) -> list[str]:
    """Each equation that does not hold, as one sentence with its numbers."""
    segments = [store.lists.span(view).flatten() for view in store.lists.live]
    view_rows = torch.cat(segments) if segments else store.table.rows.new_empty(0)
    owners = _Owners(store.num_units, store.device)
    faults: list[str] = []
    for size in store.pool.allocator.sizes:
        faults += owners.add("free list", store.pool.allocator.free_blocks(size), size)
    for owner, rows in (("slot table", store.table.rows), ("views", view_rows)):
        for tier in STORED_TIERS:
            units = row_unit(rows[row_tier(rows) == tier])
            faults += owners.add(f"{owner} ({tier.name})", units, ROW_UNITS[tier])
    return [
        *faults,
        *owners.faults(),
        *_count_faults("slot table", store.table.rows, store.slot_rows_by_tier),
        *_count_faults("views", view_rows, store.view_rows_by_tier),
        *_view_faults(store),
        *_total_faults(store),
    ]


class _Owners:
    """How many owners claim each unit."""

    def __init__(self, num_units: int, device: torch.device) -> None:
        self._claims = torch.zeros(num_units, dtype=torch.int32, device=device)

    def add(self, owner: str, units: torch.Tensor, size: int) -> Iterator[str]:
        """Claim the blocks of ``size`` that begin at ``units``."""
        num_units = len(self._claims)
        units = units.long()
        outside = (units < 0) | (units + size > num_units)
        if bool(outside.any()):
            yield (
                f"{owner}: {int(outside.sum())} blocks lie outside of {num_units} units, "
                f"the first at unit {int(units[outside][0])}"
            )
        units = units[~outside]
        askew = units % size != 0
        if bool(askew.any()):
            yield (
                f"{owner}: {int(askew.sum())} blocks of {size} units are not aligned, "
                f"the first at unit {int(units[askew][0])}"
            )
        claimed = (units[:, None] + torch.arange(size, device=units.device)).flatten()
        self._claims += torch.bincount(claimed, minlength=num_units)

    def faults(self) -> Iterator[str]:
        for problem, wrong in (
            ("no owner", self._claims == 0),
            ("more than one owner", self._claims > 1),
        ):
            if bool(wrong.any()):
                unit = int(wrong.nonzero()[0])
                yield (
                    f"{int(wrong.sum())} units have {problem}, "
                    f"the first is unit {unit} with {int(self._claims[unit])}"
                )


def _count_faults(owner: str, rows: torch.Tensor, counts: RowCounts) -> Iterator[str]:
    for tier in STORED_TIERS:
        found = int((row_tier(rows) == tier).sum())
        if found != counts[tier]:
            yield f"{owner}: {found} {tier.name} rows found, {counts[tier]} counted"


def _view_faults(store: KVStore) -> Iterator[str]:
    lists = store.lists
    end = inside = 0
    for i, view in enumerate(lists.live):
        if view.start < end or not 0 <= view.width <= view.capacity:
            yield (
                f"view {i} has columns {view.start} to {view.start + view.capacity} and width "
                f"{view.width}, the columns before it are taken up to {end}"
            )
        end = view.start + view.capacity
        rows = lists.span(view)
        inside += int((rows >= 0).sum())
        yield from _count_faults(f"view {i}", rows, view.num_rows)
    if end > lists.columns:
        yield f"views end at column {end} of {lists.columns}"
    listed = int((lists.rows >= 0).sum())
    if listed != inside:
        yield f"view lists hold {listed} rows, the views' own columns {inside}"


def _total_faults(store: KVStore) -> Iterator[str]:
    def units(counts: RowCounts) -> int:
        return sum(ROW_UNITS[tier] * n for tier, n in counts.items())

    in_slots, in_views = units(store.slot_rows_by_tier), units(store.view_rows_by_tier)
    free, total = store.free_units, store.num_units
    if free + in_slots + in_views != total:
        yield f"free {free} + slots {in_slots} + views {in_views} units != {total}"
    padding = int((store.table.rows[:, 0] >= 0).sum())
    if padding:
        yield f"the padding slot 0 has {padding} rows"
