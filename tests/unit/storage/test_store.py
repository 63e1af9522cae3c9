"""Single behaviours of the store that random histories do not single out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from arkv_sglang.core import NO_ROW, Geometry, Tier, TierPlan, row_tier, row_unit
from arkv_sglang.kernels import api as kernels
from arkv_sglang.storage.allocator import OutOfUnits
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView

GEOMETRY = Geometry(num_layers=2, num_kv_heads=2, head_dim=8)
O, Q, E = int(Tier.ORIGINAL), int(Tier.QUANTIZED), int(Tier.EVICTED)  # noqa: E741


def slots_of(*slots: int) -> torch.Tensor:
    return torch.tensor(slots, dtype=torch.int64)


def plan(*layers: list[int]) -> TierPlan:
    return TierPlan(torch.tensor(layers, dtype=torch.int8))


def written(store: KVStore, slots: torch.Tensor) -> torch.Tensor:
    """Bind and write ``slots``; returns the K values bf16 [L, n, H, D] (V is their negative)."""
    g = store.geometry
    store.bind_slots(slots)
    k = torch.randn(g.num_layers, len(slots), g.num_kv_heads, g.head_dim).to(torch.bfloat16)
    for layer in range(g.num_layers):
        store.write(layer, store.slot_rows(layer, slots), k[layer], -k[layer])
    return k


def make_view(
    store: KVStore, slots: torch.Tensor, tiers: TierPlan, shared: torch.Tensor | None = None
) -> RequestView:
    zeros = torch.zeros(store.geometry.num_layers, len(slots))
    return store.create_view(slots, tiers, slots, zeros, zeros, 4, shared)


@pytest.fixture
def store() -> KVStore:
    return KVStore(GEOMETRY, 40, 16, "cpu")


def test_taken_over_rows_stay_where_they_are(store: KVStore) -> None:
    slots = slots_of(3, 1, 2)
    k = written(store, slots)
    rows = store.table.get(slots)
    view = make_view(store, slots, plan([O, E, O], [E, O, E]))
    assert torch.equal(
        store.view_state(view).rows,
        torch.tensor([[rows[0, 0], rows[0, 2]], [rows[1, 1], NO_ROW]]),
    )
    assert (store.table.rows == NO_ROW).all()
    assert store.free_units == 40 - 3 * 2
    assert view.rows_evicted == store.rows_evicted_total == 3
    kept = kernels.read_rows(store.arena, rows[0, [0, 2]], torch.bfloat16)[0]
    assert torch.equal(kept, k[0, [0, 2]])


def test_shared_rows_stay_with_their_slots(store: KVStore) -> None:
    slots = slots_of(1, 2)
    written(store, slots)
    rows = store.table.get(slots)
    view = make_view(store, slots, plan([O, Q], [Q, Q]), torch.tensor([True, True]))
    assert torch.equal(store.table.get(slots), rows)
    assert store.free_units == 40 - 8 - 5
    assert store.view_num_rows(view) == {Tier.ORIGINAL: 1, Tier.QUANTIZED: 3}
    assert store.view_bytes(view) == {Tier.ORIGINAL: 64, Tier.QUANTIZED: 3 * (32 + 4)}


def test_a_quantized_row_is_not_restored(store: KVStore) -> None:
    slots = slots_of(1, 2)
    written(store, slots)
    assert store.demote_slots(slots, layers=[1]) == 2
    assert store.rows_demoted_total == 2
    assert store.demote_slots(slots, layers=[1]) == 0
    view = make_view(store, slots, plan([O, O], [O, O]), torch.tensor([True, False]))
    assert store.view_state(view).tiers.tolist() == [[O, O], [Q, Q]]


def test_demoted_rows_share_a_pair_so_that_whole_pairs_come_free(store: KVStore) -> None:
    slots = slots_of(1, 2, 3)
    written(store, slots)
    before = row_unit(store.table.get(slots)).flatten()
    assert store.demote_slots(slots) == 6
    after = row_unit(store.table.get(slots)).flatten()
    first = before[::2].repeat_interleave(2)
    assert torch.equal(after, first + torch.tensor([0, 1] * 3))
    assert len(store.pool.allocator.free_blocks(1)) == 0


def test_an_odd_demoted_row_keeps_the_first_unit_of_its_pair(store: KVStore) -> None:
    slots = slots_of(1)
    written(store, slots)
    rows = store.table.get(slots)
    store.demote_slots(slots, layers=[1])
    assert store.table.get(slots).tolist() == [[int(rows[0])], [int(rows[1]) + Q - O]]


def test_many_rows_shrink_right_across_kernel_calls() -> None:
    geometry = Geometry(num_layers=2, num_kv_heads=1, head_dim=8)
    store = KVStore(geometry, 2000, 400, "cpu")
    store.pool._move_rows = 8
    slots = torch.arange(1, 302)
    k = written(store, slots)
    store.demote_slots(slots)
    for layer in range(2):
        got, _ = kernels.read_rows(store.arena, store.slot_rows(layer, slots), torch.float32)
        want = kernels.dequantize(*kernels.quantize(k[layer]), torch.float32)
        assert torch.equal(got, want)
    assert store.check_integrity() == []


def test_room_that_takeover_frees_counts_for_copies() -> None:
    store = KVStore(GEOMETRY, 16, 16, "cpu")
    slots = slots_of(1, 2, 3, 4)
    written(store, slots)
    shared = torch.tensor([True, True, False, False])
    everything = plan([O, Q, Q, E], [Q, O, E, Q])
    assert store.view_units_needed(slots, everything, shared) == 0
    view = make_view(store, slots, everything, shared)
    assert store.free_units == 0
    assert store.view_num_rows(view) == {Tier.ORIGINAL: 2, Tier.QUANTIZED: 4}
    assert store.check_integrity() == []


def test_a_view_too_large_changes_nothing() -> None:
    store = KVStore(GEOMETRY, 16, 16, "cpu")
    slots = slots_of(1, 2, 3, 4)
    written(store, slots)
    before = store.table.rows.clone()
    with pytest.raises(OutOfUnits, match="16 arena units needed, 0 free"):
        make_view(store, slots, plan([O] * 4, [O] * 4), torch.ones(4, dtype=torch.bool))
    assert torch.equal(store.table.rows, before)
    assert store.lists.live == []
    assert store.check_integrity() == []


@pytest.mark.parametrize("step", ["demote", "replan", "owned", "shared", "both"])
def test_nan_leaves_everything_as_it_was(store: KVStore, step: str) -> None:
    """Two slots, the second with one NaN in the last layer."""
    slots = slots_of(1, 2)
    k = written(store, slots)
    k[1, 1, 1, 3] = torch.nan
    store.write(1, store.slot_rows(1, slots), k[1], -k[1])
    view = make_view(store, slots, plan([O, O], [O, O])) if step == "replan" else None
    before, counts = store.table.rows.clone(), dict(store.slot_rows_by_tier)
    arena, free = store.arena.k.clone(), store.free_units
    shared = torch.tensor([step in ("shared", "both"), step == "shared"])
    with pytest.raises(kernels.NaNError):
        if view is not None:
            store.replan_view(view, plan([Q, Q], [E, Q]))
        elif step == "demote":
            store.demote_slots(slots)
        else:
            make_view(store, slots, plan([Q, Q], [Q, Q]), shared)
    assert torch.equal(store.table.rows, before) and store.slot_rows_by_tier == counts
    assert torch.equal(store.arena.k, arena) and store.free_units == free
    assert store.check_integrity() == []
    if view is not None:
        store.release_view(view)
    store.release_slots(slots)
    assert store.free_units == store.num_units


def test_an_empty_view_grows(store: KVStore) -> None:
    slots = slots_of(1)
    written(store, slots)
    view = make_view(store, slots, plan([E], [E]))
    assert store.decode_index([view]).kv_lens == [0]
    rows = store.append_rows([view], [7])
    assert torch.equal(store.view_rows(1, store.decode_index([view])), rows[1])
    store.replan_view(view, plan([E], [Q]))
    assert store.view_num_rows(view) == {Tier.ORIGINAL: 0, Tier.QUANTIZED: 1}
    assert store.release_view(view) == 1
    assert store.free_units == store.num_units


def test_empty_arguments_are_fine(store: KVStore) -> None:
    none = slots_of()
    store.bind_slots(none)
    assert store.release_slots(none) == store.demote_slots(none) == 0
    assert store.append_rows([], []).shape == (2, 0)
    assert store.decode_index([]).index.shape == (0,)
    assert store.release_view(make_view(store, none, plan([], []))) == 0
    assert store.check_integrity() == []


def test_views_keep_their_rows_when_segments_move() -> None:
    store = KVStore(GEOMETRY, 4 * 2000, 100, "cpu")
    views = []
    for i in range(6):
        slots = torch.arange(1, 41)
        written(store, slots)
        views.append(make_view(store, slots, TierPlan(torch.full((2, 40), O, dtype=torch.int8))))
        if i == 3:
            store.release_view(views.pop(1))
    before = [store.view_state(view) for view in views]
    for _ in range(100):
        store.append_rows(views, [0] * len(views))
    for view, state in zip(views, before, strict=True):
        after = store.view_state(view)
        assert torch.equal(after.rows[:, :40], state.rows)
        assert torch.equal(after.positions[:, :40], state.positions)
        assert torch.equal(after.num_observations[:, :40], state.num_observations)
    assert store.check_integrity() == []


def test_flushed_views_are_dead(store: KVStore) -> None:
    slots = slots_of(1)
    written(store, slots)
    view = make_view(store, slots, plan([O], [O]))
    store.clear()
    assert store.free_units == store.num_units
    assert store.release_view(view) == 0
    for use in (
        lambda: store.append_rows([view], [0]),
        lambda: store.decode_index([view]),
        lambda: store.view_state(view),
        lambda: store.replan_view(view, plan([O], [O])),
    ):
        with pytest.raises(ValueError, match="views must be live"):
            use()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s: s.release_slots(slots_of(1, 2, 1)), "slot 1 more than once"),
        (lambda s: s.demote_slots(slots_of(2, 2)), "slot 2 more than once"),
        (lambda s: s.bind_slots(slots_of(5, 5)), "slot 5 more than once"),
        (lambda s: s.bind_slots(slots_of(0)), "padding slot 0"),
        (lambda s: s.bind_slots(slots_of(5, 2)), "got slot 2 that has"),
        (lambda s: make_view(s, slots_of(1, 1), plan([O, O], [O, O])), "slot 1 more than once"),
        (lambda s: make_view(s, slots_of(1, 9), plan([O, O], [E, O])), "2 have none"),
        (lambda s: make_view(s, slots_of(1), plan([O])), r"plan must be \[2, 1\], got \[1, 1\]"),
        (
            lambda s: make_view(s, slots_of(1), plan([O], [O]), torch.ones(2, dtype=torch.bool)),
            r"shared must be \[1\], got \[2\]",
        ),
        (lambda s: KVStore(GEOMETRY, 1, 4, "cpu"), "num_units must be"),
    ],
)
def test_wrong_arguments_change_nothing(
    store: KVStore, call: Callable[[KVStore], object], sentence: str
) -> None:
    written(store, slots_of(1, 2))
    before = store.table.rows.clone()
    with pytest.raises(ValueError, match=sentence):
        call(store)
    assert torch.equal(store.table.rows, before)
    assert store.check_integrity() == []


def test_the_same_view_twice_is_refused(store: KVStore) -> None:
    written(store, slots_of(1))
    view = make_view(store, slots_of(1), plan([O], [O]))
    with pytest.raises(ValueError, match="distinct"):
        store.append_rows([view, view], [1, 2])


def test_slots_without_rows_and_padding_are_ignored_by_release(store: KVStore) -> None:
    slots = slots_of(1, 2)
    written(store, slots)
    assert store.release_slots(slots_of(0, 1, 7, 0)) == 4
    assert (row_tier(store.table.get(slots_of(1))) == E).all()
    assert store.free_units == 40 - 4
