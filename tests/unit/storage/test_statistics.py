"""Running mean and variance of attention against torch over the whole history."""

from __future__ import annotations

import torch

from arkv_sglang.core import Geometry, Tier, TierPlan
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import MAX_COUNT, RequestView

GEOMETRY = Geometry(num_layers=2, num_kv_heads=1, head_dim=8)


def assert_close(got: torch.Tensor, want: torch.Tensor, rtol: float) -> None:
    """As ``torch.testing.assert_close``, whose first use imports for seconds."""
    error = ((got - want) / want).abs().max()
    assert error <= rtol, f"relative error {error:.2e}"


def view_with_history(store: KVStore, history: torch.Tensor) -> RequestView:
    """A view whose rows received ``history`` [L, W, n] from the prompt's window."""
    n = history.shape[2]
    slots = torch.arange(1, n + 1)
    store.bind_slots(slots)
    plan = TierPlan(torch.full((2, n), int(Tier.ORIGINAL), dtype=torch.int8))
    variance = history.var(dim=1) if history.shape[1] > 1 else torch.zeros(2, n)
    return store.create_view(slots, plan, slots, history.mean(dim=1), variance, history.shape[1])


def observe(store: KVStore, view: RequestView, probs: torch.Tensor) -> None:
    index = store.decode_index([view])
    for layer in range(2):
        store.observe(layer, index, probs[layer])


def test_window_and_decode_steps_count_alike() -> None:
    torch.manual_seed(0)
    store = KVStore(GEOMETRY, 80, 16, "cpu")
    history = torch.softmax(torch.randn(2, 32, 5) * 3, dim=2)
    view = view_with_history(store, history)
    for _ in range(200):
        probs = torch.softmax(torch.randn(2, 5) * 3, dim=1)
        observe(store, view, probs)
        history = torch.cat([history, probs[:, None]], dim=1)
    state = store.view_state(view)
    assert_close(state.mean, history.double().mean(dim=1), rtol=1e-6)
    assert_close(state.variance, history.double().var(dim=1), rtol=1e-4)
    assert (state.num_observations == 232).all()


def test_a_steady_large_probability_keeps_its_small_variance() -> None:
    torch.manual_seed(0)
    store = KVStore(GEOMETRY, 80, 16, "cpu")
    history = 0.9 + 1e-4 * torch.randn(2, 500, 3)
    view = view_with_history(store, history[:, :1])
    for step in range(1, 500):
        observe(store, view, history[:, step])
    assert_close(store.view_state(view).variance, history.double().var(dim=1), rtol=1e-2)


def test_an_appended_row_starts_from_nothing() -> None:
    store = KVStore(GEOMETRY, 80, 16, "cpu")
    view = view_with_history(store, torch.full((2, 8, 2), 0.5))
    observe(store, view, torch.full((2, 2), 0.5))
    store.append_rows([view], [9])
    state = store.view_state(view)
    assert state.num_observations[:, 2].tolist() == [0, 0]
    assert state.mean[:, 2].tolist() == state.variance[:, 2].tolist() == [0.0, 0.0]
    observe(store, view, torch.full((2, 3), 0.25))
    assert store.view_state(view).variance[:, 2].tolist() == [0.0, 0.0]
    observe(store, view, torch.full((2, 3), 0.75))
    state = store.view_state(view)
    assert state.mean[:, 2].tolist() == [0.5, 0.5]
    assert state.variance[:, 2].tolist() == [0.125, 0.125]
    assert state.num_observations.tolist() == [[11, 11, 2]] * 2


def test_the_count_ends_in_a_moving_average() -> None:
    store = KVStore(GEOMETRY, 80, 16, "cpu")
    view = view_with_history(store, torch.full((2, 8, 1), 0.5))
    store.lists.count.fill_(MAX_COUNT)
    for _ in range(3):
        observe(store, view, torch.full((2, 1), 1.0))
    state = store.view_state(view)
    assert (state.num_observations == MAX_COUNT).all()
    assert_close(state.mean, torch.full((2, 1), 0.5 + 0.5 * 3 / MAX_COUNT), rtol=1e-5)
