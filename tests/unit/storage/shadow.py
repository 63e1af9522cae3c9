"""A model of the store in plain Python, and the checks of a store against it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import torch

from arkv_sglang.core import ROW_UNITS, STORED_TIERS, Geometry, Tier, row_tier
from arkv_sglang.kernels import api as kernels
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView

GEOMETRY = Geometry(num_layers=3, num_kv_heads=2, head_dim=8)


@dataclass
class Row:
    """What one row must read back as, and what it was seen to receive.

    ``values``: K and V, fp32 [2, H, D], by tier: as written, and as quantized from that.
    """

    values: dict[Tier, torch.Tensor]
    tier: Tier = Tier.ORIGINAL
    position: int = -1
    queries: int = 0
    mean: float = 0.0
    variance: float = 0.0
    probs: list[float] = field(default_factory=list)

    def copy(self, tier: Tier) -> Row:
        return Row(self.values, tier)

    def statistics(self) -> tuple[float, float]:
        """Mean and unbiased variance of prompt queries and decode steps together, in fp64."""
        n = self.queries + len(self.probs)
        if n == 0:
            return 0.0, 0.0
        total = self.mean * self.queries + math.fsum(self.probs)
        squares = self.variance * max(self.queries - 1, 0) + self.mean**2 * self.queries
        squares += math.fsum(p * p for p in self.probs)
        mean = total / n
        return mean, max(squares - n * mean**2, 0.0) / max(n - 1, 1)


Layers = list[list[Row]]


class Shadow:
    """Which rows every slot and view must have."""

    def __init__(self, store: KVStore, seed: int) -> None:
        self.store = store
        self.random = torch.Generator().manual_seed(seed)
        self.choice = random.Random(seed)
        self.slots: dict[int, list[Row | None]] = {}
        self.shared: set[int] = set()
        self.views: dict[RequestView, Layers] = {}

    @property
    def used_units(self) -> int:
        return sum(ROW_UNITS[row.tier] for row in self.all_rows())

    @property
    def free_units(self) -> int:
        return self.store.num_units - self.used_units

    def all_rows(self) -> list[Row]:
        in_slots = [row for rows in self.slots.values() for row in rows if row is not None]
        return in_slots + [row for layers in self.views.values() for rows in layers for row in rows]

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.random)

    def tiers(self, n: int, keep: float) -> torch.Tensor:
        """A random ragged plan [L, n] that keeps about ``keep`` of the rows."""
        shape = (GEOMETRY.num_layers, n)
        tiers = torch.randint(0, 2, shape, generator=self.random)
        return tiers.masked_fill_(self.uniform(*shape) > keep, -1).to(torch.int8)

    def write_new(self, layer: int, rows: torch.Tensor) -> list[Row]:
        """Write fresh random values to ``rows`` (int32 [n])."""
        shape = (2, len(rows), GEOMETRY.num_kv_heads, GEOMETRY.head_dim)
        kv = (torch.randn(shape, generator=self.random) * 4).to(torch.bfloat16)
        self.store.write(layer, rows, kv[0], kv[1])
        kept, lossy = kv.float(), torch.stack([roundtrip(kv[0]), roundtrip(kv[1])])
        return [
            Row({Tier.ORIGINAL: kept[:, i], Tier.QUANTIZED: lossy[:, i]}) for i in range(len(rows))
        ]

    # Checks

    def check(self) -> None:
        """The store is healthy and equals the model."""
        assert self.store.check_integrity() == []
        assert self.store.free_units == self.free_units
        codes, rows = self._slot_rows()
        for view, layers in self.views.items():
            view_codes, view_rows = self._view_rows(view, layers)
            codes, rows = codes + view_codes, rows + view_rows
        self._check_values(codes, rows)
        self._check_usage()

    def _slot_rows(self) -> tuple[list[int], list[Row]]:
        pairs = []
        for slot in range(self.store.num_slots + 1):
            codes = self.store.table.rows[:, slot].tolist()
            for code, row in zip(codes, self.slots.get(slot, [None] * len(codes)), strict=True):
                assert (code < 0) == (row is None)
                if row is not None:
                    pairs.append((code, row))
        return [code for code, _ in pairs], [row for _, row in pairs]

    def _view_rows(self, view: RequestView, layers: Layers) -> tuple[list[int], list[Row]]:
        state = self.store.view_state(view)
        codes: list[int] = []
        assert state.rows.shape == (GEOMETRY.num_layers, view.width)
        for layer, rows in enumerate(layers):
            live = state.rows[layer] >= 0
            assert int(live.sum()) == len(rows)
            codes += state.rows[layer][live].tolist()
            assert state.positions[layer][live].tolist() == [row.position for row in rows]
            expected = torch.tensor([row.statistics() for row in rows]).view(-1, 2)
            assert torch.allclose(state.mean[layer][live], expected[:, 0], rtol=1e-5)
            assert torch.allclose(state.variance[layer][live], expected[:, 1], rtol=1e-3, atol=1e-6)
            assert not state.mean[layer][~live].any()
            assert not state.variance[layer][~live].any()
        assert torch.equal(state.tiers, row_tier(state.rows))
        return codes, [row for rows in layers for row in rows]

    def _check_values(self, codes: list[int], rows: list[Row]) -> None:
        if not rows:
            return
        packed = torch.tensor(codes, dtype=torch.int32)
        assert row_tier(packed).tolist() == [row.tier for row in rows]
        kv = torch.stack(kernels.read_rows(self.store.arena, packed, torch.float32), dim=1)
        assert torch.equal(kv, torch.stack([row.values[row.tier] for row in rows]))

    def _check_usage(self) -> None:
        usage = self.store.usage()
        in_use = sum(usage.slot_bytes.values()) + sum(usage.view_bytes.values())
        assert usage.arena_bytes == usage.free_bytes + in_use
        for view, layers in self.views.items():
            rows = [row for layer in layers for row in layer]
            for tier in STORED_TIERS:
                n = sum(row.tier == tier for row in rows)
                assert self.store.view_num_rows(view)[tier] == n
                assert self.store.view_bytes(view)[tier] == n * GEOMETRY.row_bytes(tier)


def snapshot(store: KVStore) -> list[object]:
    """Everything that a failed call must leave alone (free lists as sets: merging may reorder)."""
    usage = store.usage()
    return [
        store.table.rows.tolist(),
        [store.view_state(view).rows.tolist() for view in store.lists.live],
        store.free_units,
        usage.slot_bytes,
        usage.view_bytes,
        (usage.rows_evicted_total, usage.rows_demoted_total, usage.rows_moved_total),
    ]


def roundtrip(x: torch.Tensor) -> torch.Tensor:
    """What ``x`` reads back as from quantized rows, fp32."""
    return kernels.dequantize(*kernels.quantize(x), torch.float32)
