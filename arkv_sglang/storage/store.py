"""The KV store: one arena whose bytes flow between tiers, layers, slots and request views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from arkv_sglang.core import NO_ROW, STORED_TIERS, Arena, Geometry, Tier, TierPlan, row_tier
from arkv_sglang.kernels import api as kernels
from arkv_sglang.storage.allocator import OutOfUnits
from arkv_sglang.storage.integrity import find_faults
from arkv_sglang.storage.privatize import detach_rows
from arkv_sglang.storage.row_pool import RowPool, retarget
from arkv_sglang.storage.slot_table import SlotTable, check_bindable, check_distinct
from arkv_sglang.storage.tiering import Transitions, no_rows, reachable
from arkv_sglang.storage.usage import StoreUsage
from arkv_sglang.storage.view_lists import ViewLists
from arkv_sglang.storage.views import DecodeIndex, RequestView, ViewState


class KVStore:
    """Rows of slots (complete tokens of prompts and tree nodes) and of request views.

    Every unit is free, in the slot table or in one view. Tensors are on ``device``; the numbers
    (``free_units``, ``slot_rows_by_tier``, ``view_rows_by_tier``, counters) are host integers,
    right after every call. ``OutOfUnits`` leaves everything as it was. Not thread-safe.

    Rows that are to be quantized must have been written: NaN in them is a ``NaNError``, and that
    leaves everything as it was, too.
    """

    def __init__(
        self,
        geometry: Geometry,
        num_units: int,
        num_slots: int,
        device: torch.device | str,
    ) -> None:
        """``num_units`` is rounded down to whole bf16 rows; slots are 0 .. ``num_slots`` inclusive,
        and the padding slot 0 never has rows."""
        if not 2 <= num_units < 1 << 29:
            raise ValueError(f"num_units must be in [2, 2**29), got {num_units}")
        self.geometry = geometry
        self.num_slots = num_slots
        self.device = torch.device(device)
        self.pool = RowPool(geometry, num_units, self._relocate, self.device)
        self.table = SlotTable(geometry.num_layers, num_slots, self.device)
        self.lists = ViewLists(geometry.num_layers, self.device)
        self.slot_rows_by_tier = no_rows()
        self.view_rows_by_tier = no_rows()
        self.rows_evicted_total = 0
        self.rows_demoted_total = 0
        self.rows_moved_total = 0

    @property
    def arena(self) -> Arena:
        return self.pool.arena

    @property
    def num_units(self) -> int:
        return self.arena.num_units

    @property
    def free_units(self) -> int:
        """Units that nobody owns. All of them can be had, in whole rows of any tier."""
        return self.pool.allocator.free_units

    # Slots

    def bind_slots(self, slots: torch.Tensor) -> None:
        """Give each of ``slots`` (int64 [n], without rows) a fresh ORIGINAL row in every layer.

        Raises ``OutOfUnits``; on the CPU ``ValueError`` for a slot that has rows, occurs twice or
        is 0 (elsewhere that check would cost a sync, and ``check_integrity`` finds the leak).
        """
        self._ensure_free(len(slots) * self.geometry.token_units)
        if self.device.type == "cpu":
            check_bindable(slots, self.table.rows[0])
        layers = self.geometry.num_layers
        n = layers * len(slots)
        self.table.set(slots, self.pool.take(Tier.ORIGINAL, n).view(layers, len(slots)))
        self.slot_rows_by_tier[Tier.ORIGINAL] += n

    def slot_rows(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Row codes (int32 [n]) of ``slots`` in one layer; ``NO_ROW`` where there is none."""
        return self.table.rows[layer].index_select(0, slots)

    def write(self, layer: int, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store ``k``, ``v`` [n, H, D] of ``layer`` in ``rows`` (int32 [n]), each in its tier."""
        kernels.write_rows(self.arena, rows, k, v)

    def release_slots(self, slots: torch.Tensor) -> int:
        """Free the rows of ``slots`` (int64 [n], distinct); returns the units freed.

        Slots without rows are fine. Raises ``ValueError`` for a slot that occurs twice.
        """
        check_distinct(slots)
        freed = self.pool.free(self.table.get(slots), self.slot_rows_by_tier)
        self.table.set(slots, NO_ROW)
        return freed

    def demote_slots(self, slots: torch.Tensor, layers: Sequence[int] | None = None) -> int:
        """Quantize the ORIGINAL rows of ``slots`` (int64 [n], distinct) in ``layers`` (None: all).

        Each stays with its slot; two share the pair of the first, so that whole pairs come free.
        Returns the units freed. Raises ``ValueError`` for a slot that occurs twice.
        """
        check_distinct(slots)
        chosen = range(self.geometry.num_layers) if layers is None else sorted(set(layers))
        index = (torch.tensor(list(chosen), device=self.device)[:, None], slots[None])
        rows = self.table.rows[index]
        target = reachable(rows, torch.full_like(rows, Tier.QUANTIZED, dtype=torch.int8))
        self.pool.require_numbers(rows, target)
        before = self.slot_rows_by_tier[Tier.QUANTIZED]
        self.table.rows[index], freed = self.pool.retier(rows, target, self.slot_rows_by_tier)
        self.rows_demoted_total += self.slot_rows_by_tier[Tier.QUANTIZED] - before
        return freed

    # Views

    def view_units_needed(
        self, slots: torch.Tensor, plan: TierPlan, shared: torch.Tensor | None = None
    ) -> int:
        """Free units that ``create_view`` of the same needs; negative if it frees some."""
        return self._weigh(slots, plan, self._shared_mask(slots, shared))[1].units_needed

    def create_view(
        self,
        slots: torch.Tensor,
        plan: TierPlan,
        positions: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        num_queries: int | torch.Tensor,
        shared: torch.Tensor | None = None,
    ) -> RequestView:
        """Build a request's view from its ``slots`` (int64 [n], distinct, with rows).

        Candidate i of ``plan`` [L, n] is the row of ``slots[i]``. A QUANTIZED row stays so even
        where the plan says ORIGINAL. Rows of slots in ``shared`` (bool [n]; None: no slot) belong
        to others: they are copied and the slot keeps its own. Rows of the other slots pass to the
        view, evicted ones are freed, and the slots end without rows. ``positions`` int64 [n];
        ``mean`` and unbiased ``variance`` fp32 [L, n] of the attention that ``num_queries``
        (one number, or int64 [n]) queries paid to each row.

        Free the view with ``release_view``. Raises ``OutOfUnits``, or ``ValueError`` when a slot
        occurs twice or has no row where the plan wants one.
        """
        check_distinct(slots)
        mask = self._shared_mask(slots, shared)
        target, moves = self._weigh(slots, plan, mask)
        self._ensure_free(moves.units_needed)
        self.pool.require_numbers(self.table.get(slots), target)
        rows = detach_rows(
            self.pool, self.table, slots, target, mask, moves, self.slot_rows_by_tier
        )
        view = self.lists.add(moves.width)
        content = ViewState.of(rows, positions, mean, variance, num_queries)
        self.lists.fill(view, moves.width, content)
        for tier in STORED_TIERS:
            view.num_rows[tier] = moves.owned[tier] + moves.copied[tier]
            self.view_rows_by_tier[tier] += view.num_rows[tier]
        self._count_evicted(view, moves.evicted)
        return view

    def add_view(self) -> RequestView:
        """A view without rows, for a prompt that is compressed chunk by chunk."""
        return self.lists.add(0)

    def extend_view(self, view: RequestView, slots: torch.Tensor, content: ViewState) -> None:
        """The rows of ``slots`` (int64 [n], distinct, with rows in every layer) pass to the view.

        They keep their tiers, and the slots end without rows. ``content`` [L, N + n] has the
        positions and statistics of the view's N columns, as ``view_state`` gives them, and then of
        the slots; its rows and tiers are not read. Raises ``ValueError``.
        """
        check_distinct(slots)
        self._check_live([view])
        rows = self.table.get(slots)
        if bool((rows < 0).any()):
            raise ValueError("slots must have rows in every layer, got some without")
        counts = {tier: int((row_tier(rows) == tier).sum()) for tier in STORED_TIERS}
        self.lists.make_room([view], len(slots))
        width = view.width + len(slots)
        content = replace(content, rows=torch.cat((self.lists.span(view), rows), dim=1))
        self.lists.fill(view, width, content)
        self.table.set(slots, NO_ROW)
        for tier, n in counts.items():
            self.slot_rows_by_tier[tier] -= n
            self.view_rows_by_tier[tier] += n
            view.num_rows[tier] += n

    def append_rows(self, views: Sequence[RequestView], positions: Sequence[int]) -> torch.Tensor:
        """A fresh ORIGINAL row per layer for each of ``views`` (distinct), at its position.

        Returns the row codes, int32 [L, B], to write K and V to. Raises ``OutOfUnits``.
        """
        self._check_live(views)
        self._ensure_free(len(views) * self.geometry.token_units)
        self.lists.make_room(views)
        layers = self.geometry.num_layers
        rows = self.pool.take(Tier.ORIGINAL, layers * len(views)).view(layers, len(views))
        self.lists.append(views, positions, rows)
        for view in views:
            view.num_rows[Tier.ORIGINAL] += layers
        self.view_rows_by_tier[Tier.ORIGINAL] += layers * len(views)
        return rows

    def decode_index(self, views: Sequence[RequestView]) -> DecodeIndex:
        """Where the rows of ``views`` are, for all layers. Valid until any view changes."""
        self._check_live(views)
        return self.lists.decode_index(views)

    def view_rows(self, layer: int, index: DecodeIndex) -> torch.Tensor:
        """Row codes int32 [total] of one layer; ``NO_ROW`` where it has fewer rows than others."""
        return self.lists.rows[layer].index_select(0, index.index)

    def rows_of_view(self, layer: int, view: RequestView) -> torch.Tensor:
        """Row codes int32 [n] that one view has in one layer."""
        rows = self.lists.span(view)[layer]
        return rows[rows >= 0]

    def slot_row_table(self, slots: torch.Tensor) -> torch.Tensor:
        """Row codes int32 [L, n] of ``slots`` in every layer."""
        return self.table.get(slots)

    def observe(self, layer: int, index: DecodeIndex, probs: torch.Tensor) -> None:
        """Count ``probs`` (fp32 [total]) as one more observation of each row's attention."""
        self.lists.observe(layer, index.index, probs)

    def view_state(self, view: RequestView) -> ViewState:
        """Copy of the view's rows, tiers, positions and statistics, [L, N] with N its width."""
        self._check_live([view])
        return self.lists.state(view)

    def replan_view(self, view: RequestView, plan: TierPlan) -> None:
        """Keep, quantize or drop the view's rows in place; ``plan`` [L, N] as ``view_state`` has
        them.

        Freed units are free at once; none is ever needed. Where there is no row the plan is
        ignored.
        """
        self._check_live([view])
        state = self.lists.state(view)
        target = reachable(state.rows, self._checked_tiers(plan, view.width))
        self.pool.require_numbers(state.rows, target)
        unshared = torch.zeros(view.width, dtype=torch.bool, device=self.device)
        moves = Transitions(state.rows, target, unshared)
        state.rows.copy_(self.pool.retier(state.rows, target, self.view_rows_by_tier)[0])
        self.lists.fill(view, moves.width, state)
        view.num_rows.update(moves.owned)
        self._count_evicted(view, moves.evicted)

    def release_view(self, view: RequestView) -> int:
        """Free the view's rows; returns the units freed, 0 if it was released or flushed before."""
        if not view.live:
            return 0
        freed = self.pool.free(self.lists.span(view), self.view_rows_by_tier)
        self.lists.remove(view)
        view.num_rows.update(no_rows())
        return freed

    def view_num_rows(self, view: RequestView) -> dict[Tier, int]:
        """Rows by stored tier over all layers. No device sync."""
        return dict(view.num_rows)

    def view_bytes(self, view: RequestView) -> dict[Tier, int]:
        """Bytes by stored tier, scales included, as budgets count them. No device sync."""
        return {tier: n * self.geometry.row_bytes(tier) for tier, n in view.num_rows.items()}

    # All of it

    def clear(self) -> None:
        """Everything free. Views handed out are dead: releasing one is a no-op, other use fails."""
        self.pool.allocator.reset()
        self.table.reset()
        self.lists.reset()
        self.slot_rows_by_tier = no_rows()
        self.view_rows_by_tier = no_rows()

    def usage(self) -> StoreUsage:
        """Bytes and counters now. No device sync."""
        return StoreUsage.of(self)

    def check_integrity(self) -> list[str]:
        """Each equation of the store that fails, as a sentence; ``[]`` when healthy. Slow."""
        return find_faults(self)

    def _ensure_free(self, units: int) -> None:
        if units > self.free_units:
            raise OutOfUnits(units, self.free_units)

    def _check_live(self, views: Sequence[RequestView]) -> None:
        if len(set(map(id, views))) < len(views):
            raise ValueError("views must be distinct, got one twice")
        if not all(view.live for view in views):
            raise ValueError("views must be live, got one that was released or flushed")

    def _shared_mask(self, slots: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
        if shared is None:
            return torch.zeros(len(slots), dtype=torch.bool, device=self.device)
        if shared.shape != slots.shape:
            raise ValueError(f"shared must be {list(slots.shape)}, got {list(shared.shape)}")
        return shared.to(self.device)

    def _checked_tiers(self, plan: TierPlan, n: int) -> torch.Tensor:
        shape = (self.geometry.num_layers, n)
        if plan.tiers.shape != shape:
            raise ValueError(f"plan must be {list(shape)}, got {list(plan.tiers.shape)}")
        return plan.tiers.to(self.device)

    def _weigh(
        self, slots: torch.Tensor, plan: TierPlan, shared: torch.Tensor
    ) -> tuple[torch.Tensor, Transitions]:
        tiers = self._checked_tiers(plan, len(slots))
        rows = self.table.get(slots)
        missing = int(((rows < 0) & (tiers >= 0)).sum())
        if missing:
            raise ValueError(f"slots must have the rows that the plan keeps, {missing} have none")
        target = reachable(rows, tiers)
        return target, Transitions(rows, target, shared)

    def _count_evicted(self, view: RequestView, n: int) -> None:
        view.rows_evicted += n
        self.rows_evicted_total += n

    def _relocate(self, src: torch.Tensor, dst: torch.Tensor, size: int) -> None:
        """Move the rows in blocks of ``size`` units from ``src`` to ``dst``; owners follow."""
        offsets = torch.arange(size, dtype=torch.int32, device=self.device)
        remap = torch.full((self.num_units,), -1, dtype=torch.int32, device=self.device)
        remap[(src[:, None] + offsets).flatten().long()] = (dst[:, None] + offsets).flatten()
        # Layer by layer, so that the scan's temporaries stay small beside the tables.
        scans = [
            retarget(layer_rows, remap)
            for rows in (self.table.rows, self.lists.rows)
            for layer_rows in rows
        ]
        old, new = (torch.cat(codes) for codes in zip(*scans, strict=True))
        self.pool.move(old, new)
        self.rows_moved_total += len(old)
