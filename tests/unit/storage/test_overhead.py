"""What the store's own tables cost beside the arena at their worst: full of quantized views."""

from __future__ import annotations

import pytest
import torch

from arkv_sglang.core import Geometry, Tier, TierPlan
from arkv_sglang.storage.store import KVStore

BF16_TOKENS = 4096


def fill_with_views(store: KVStore, width: int) -> float:
    """Turn all bytes into quantized views of ``width`` tokens; returns the worst overhead ratio."""
    layers = store.geometry.num_layers
    worst = 0.0
    while tokens := min(width, store.free_units // store.geometry.token_units):
        slots = torch.arange(1, tokens + 1)
        store.bind_slots(slots)
        plan = TierPlan(torch.full((layers, tokens), int(Tier.QUANTIZED), dtype=torch.int8))
        statistics = torch.zeros(layers, tokens)
        store.create_view(slots, plan, slots, statistics, statistics, 32)
        worst = max(worst, store.usage().overhead_ratio)
    return worst


@pytest.mark.parametrize(
    ("heads", "head_dim", "limit"), [(3, 64, 0.10), (8, 128, 0.05)], ids=["192", "1024"]
)
@pytest.mark.parametrize("width", [256, 900])
def test_overhead_stays_within_its_limit(
    heads: int, head_dim: int, limit: float, width: int
) -> None:
    geometry = Geometry(num_layers=1, num_kv_heads=heads, head_dim=head_dim)
    units = BF16_TOKENS * geometry.token_units
    store = KVStore(geometry, units, num_slots=2 * BF16_TOKENS, device="cpu")
    worst = fill_with_views(store, width)
    assert store.free_units < geometry.token_units
    assert store.check_integrity() == []
    print(f"overhead {worst:.2%}: {store.usage().overhead_bytes}")
    assert worst <= limit
