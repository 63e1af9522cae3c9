"""Random histories of a small store under pressure, compared with a plain model after each step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from arkv_sglang.core import NO_ROW, ROW_UNITS, Tier, TierPlan
from arkv_sglang.storage.allocator import OutOfUnits
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.view_lists import ViewLists
from arkv_sglang.storage.views import RequestView
from tests.unit.storage.shadow import GEOMETRY, Row, Shadow, snapshot

NUM_SLOTS = 24
NUM_LAYERS = GEOMETRY.num_layers


class StoreMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 16), units=st.sampled_from([60, 96, 121]))
    def start(self, seed: int, units: int) -> None:
        self.store = KVStore(GEOMETRY, units, NUM_SLOTS, "cpu")
        # Small, so that segments fill up, move and grow.
        self.store.lists = ViewLists(NUM_LAYERS, "cpu", first_columns=12, reserve=1)
        self.shadow = Shadow(self.store, seed)
        self.since_flush = 0

    # Slots

    @precondition(lambda self: len(self.shadow.slots) < NUM_SLOTS)
    @rule(n=st.integers(1, 8), fill_up=st.booleans())
    def bind_and_write(self, n: int, fill_up: bool) -> None:
        if fill_up:
            n = self.shadow.free_units // GEOMETRY.token_units
        unbound = [s for s in range(1, NUM_SLOTS + 1) if s not in self.shadow.slots][:n]
        slots = torch.tensor(unbound, dtype=torch.int64)
        if self._refused(len(unbound) * GEOMETRY.token_units, lambda: self.store.bind_slots(slots)):
            return
        layers = [
            self.shadow.write_new(layer, self.store.slot_rows(layer, slots))
            for layer in range(NUM_LAYERS)
        ]
        for i, slot in enumerate(unbound):
            self.shadow.slots[slot] = [rows[i] for rows in layers]

    @precondition(lambda self: self.shadow.slots)
    @rule()
    def publish(self) -> None:
        self.shadow.shared |= self._some_slots()

    @precondition(lambda self: self.shadow.slots)
    @rule()
    def release(self) -> None:
        self._release(self._some_slots())

    def _release(self, gone: Collection[int]) -> None:
        without_rows = [s for s in range(NUM_SLOTS + 1) if s not in self.shadow.slots][:2]
        before = self.shadow.used_units
        freed = self.store.release_slots(torch.tensor([*gone, *without_rows], dtype=torch.int64))
        for slot in gone:
            del self.shadow.slots[slot]
        self.shadow.shared -= set(gone)
        assert freed == before - self.shadow.used_units

    @precondition(lambda self: self.shadow.slots)
    @rule(layers=st.none() | st.sets(st.integers(0, NUM_LAYERS - 1), min_size=1))
    def demote(self, layers: set[int] | None) -> None:
        self._demote(self._some_slots(), None if layers is None else sorted(layers))

    def _demote(self, slots: Collection[int], chosen: list[int] | None) -> None:
        before = self.shadow.used_units
        freed = self.store.demote_slots(torch.tensor(list(slots), dtype=torch.int64), chosen)
        for slot in slots:
            for layer in range(NUM_LAYERS) if chosen is None else chosen:
                row = self.shadow.slots[slot][layer]
                assert row is not None
                row.tier = Tier.QUANTIZED
        assert freed == before - self.shadow.used_units

    # Views

    @precondition(lambda self: self.shadow.slots)
    @rule(keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]), queries=st.sampled_from([1, 7]))
    def privatize(self, keep: float, queries: int) -> None:
        shadow = self.shadow
        slots = sorted(self._some_slots())
        n = len(slots)
        tiers = shadow.tiers(n, keep)
        shared = torch.tensor([slot in shadow.shared for slot in slots], dtype=torch.bool)
        mean = shadow.uniform(NUM_LAYERS, n)
        variance = shadow.uniform(NUM_LAYERS, n) * (queries > 1)
        layers, needed = self._plan_rows(slots, tiers, mean, variance, queries)
        index = torch.tensor(slots, dtype=torch.int64)
        assert self.store.view_units_needed(index, TierPlan(tiers), shared) == needed
        made: list[RequestView] = []
        if self._refused(
            needed,
            lambda: made.append(
                self.store.create_view(
                    index, TierPlan(tiers), index, mean, variance, queries, shared
                )
            ),
        ):
            return
        for slot in slots:
            if slot not in shadow.shared:
                del shadow.slots[slot]
        shadow.views[made[0]] = layers
        kept = sum(len(rows) for rows in layers)
        assert made[0].rows_evicted == NUM_LAYERS * n - kept

    @precondition(lambda self: self.shadow.views)
    @rule(steps=st.sampled_from([1, 3, 20]))
    def append_write_observe(self, steps: int) -> None:
        views = self._some_views()
        for step in range(steps):
            positions = [1000 * step + i for i in range(len(views))]
            appended: list[torch.Tensor] = []
            append = partial(self._append, views, positions, appended)
            if self._refused(len(views) * GEOMETRY.token_units, append):
                return
            for layer in range(NUM_LAYERS):
                rows = self.shadow.write_new(layer, appended[0][layer])
                for view, position, row in zip(views, positions, rows, strict=True):
                    row.position = position
                    self.shadow.views[view][layer].append(row)
            self._observe(views)

    def _append(
        self, views: list[RequestView], positions: list[int], out: list[torch.Tensor]
    ) -> None:
        out.append(self.store.append_rows(views, positions))

    def _observe(self, views: list[RequestView]) -> None:
        index = self.store.decode_index(views)
        assert index.kv_lens == [view.width for view in views]
        assert index.kv_indptr.diff().tolist() == index.kv_lens
        for layer in range(NUM_LAYERS):
            rows = self.store.view_rows(layer, index)
            probs = self.shadow.uniform(len(rows))
            # What stands at a hole must not matter.
            probs[rows == NO_ROW] = torch.nan
            self.store.observe(layer, index, probs)
            for i, view in enumerate(views):
                part = slice(int(index.kv_indptr[i]), int(index.kv_indptr[i + 1]))
                seen = probs[part][rows[part] != NO_ROW].tolist()
                for row, prob in zip(self.shadow.views[view][layer], seen, strict=True):
                    row.probs.append(prob)

    @precondition(lambda self: self.shadow.views)
    @rule(keep=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    def replan(self, keep: float) -> None:
        view = self.shadow.choice.choice(list(self.shadow.views))
        tiers = self.shadow.tiers(view.width, keep)
        state = self.store.view_state(view)
        self.store.replan_view(view, TierPlan(tiers))
        layers = self.shadow.views[view]
        for layer, rows in enumerate(layers):
            live = state.rows[layer] != NO_ROW
            asked = tiers[layer][live].tolist()
            for row, tier in zip(rows, asked, strict=True):
                row.tier = Tier.EVICTED if tier < 0 else Tier(max(row.tier, tier))
            layers[layer] = [row for row in rows if row.tier != Tier.EVICTED]
        assert view.width == max(len(rows) for rows in layers)

    @precondition(lambda self: len(self.shadow.slots) > 3)
    @rule()
    def scatter(self) -> None:
        """Demote many slots and let half of them go: singles everywhere, and then no pairs."""
        slots = sorted(self.shadow.slots)
        self._demote(slots, None)
        self._release(self.shadow.choice.sample(slots, len(slots) // 2))
        self.bind_and_write(0, fill_up=True)

    @precondition(lambda self: self.shadow.views)
    @rule()
    def drop_view(self) -> None:
        view = self.shadow.choice.choice(list(self.shadow.views))
        rows = [row for rows in self.shadow.views.pop(view) for row in rows]
        assert self.store.release_view(view) == sum(ROW_UNITS[row.tier] for row in rows)
        assert self.store.release_view(view) == 0

    @precondition(lambda self: self.since_flush > 15)
    @rule()
    def flush(self) -> None:
        self.store.clear()
        for view in self.shadow.views:
            assert self.store.release_view(view) == 0
        self.shadow.slots.clear()
        self.shadow.shared.clear()
        self.shadow.views.clear()
        self.since_flush = 0

    @invariant()
    def store_equals_model(self) -> None:
        if hasattr(self, "shadow"):
            self.shadow.check()
            self.since_flush += 1

    # Helpers

    def _some_slots(self) -> set[int]:
        choice, bound = self.shadow.choice, sorted(self.shadow.slots)
        return set(choice.sample(bound, min(len(bound), choice.randint(1, 8))))

    def _some_views(self) -> list[RequestView]:
        views = list(self.shadow.views)
        return self.shadow.choice.sample(views, self.shadow.choice.randint(1, len(views)))

    def _refused(self, needed: int, call: Callable[[], object]) -> bool:
        """Make the call. It must fail exactly when the bytes are gone, and then change nothing."""
        if needed <= self.shadow.free_units:
            call()
            return False
        before = snapshot(self.store)
        with pytest.raises(OutOfUnits) as failure:
            call()
        assert (failure.value.needed, failure.value.free) == (needed, self.shadow.free_units)
        assert snapshot(self.store) == before
        return True

    def _plan_rows(
        self,
        slots: list[int],
        tiers: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        queries: int,
    ) -> tuple[list[list[Row]], int]:
        """The rows that a view of the plan must have, and the units that it takes net."""
        layers: list[list[Row]] = [[] for _ in range(NUM_LAYERS)]
        needed = 0
        for i, slot in enumerate(slots):
            for layer in range(NUM_LAYERS):
                source = self.shadow.slots[slot][layer]
                assert source is not None
                if slot not in self.shadow.shared:
                    needed -= ROW_UNITS[source.tier]
                asked = int(tiers[layer, i])
                if asked < 0:
                    continue
                row = source.copy(Tier(max(asked, source.tier)))
                row.position, row.queries = slot, queries
                row.mean, row.variance = float(mean[layer, i]), float(variance[layer, i])
                layers[layer].append(row)
                needed += ROW_UNITS[row.tier]
        return layers, needed


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    # A failing history is short as it is, and shrinking one takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestStore = StoreMachine.TestCase
