"""The figures of one request, as its user sees them in ``meta_info["arkv"]``."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from arkv_sglang.core import STORED_TIERS, Geometry, Tier, TierPlan, row_tier
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView


@dataclass
class RequestRecord:
    """Rows over all layers: what the request attends to at the end, and at its peak by bytes."""

    geometry: Geometry
    rows: dict[Tier, int] = field(default_factory=dict)
    peak_rows: dict[Tier, int] = field(default_factory=dict)
    rows_evicted: int = 0
    times_planned: int = 0
    chunks_compressed: int = 0

    def observe_slots(self, store: KVStore, slots: torch.Tensor) -> None:
        """The whole prompt, complete, in whatever tiers the tree holds it."""
        found = dict.fromkeys(STORED_TIERS, 0)
        for layer in range(self.geometry.num_layers):
            tiers = row_tier(store.slot_rows(layer, slots))
            for tier in STORED_TIERS:
                found[tier] += int((tiers == tier).sum())
        self._observe(found)

    def observe_view(self, store: KVStore, view: RequestView) -> None:
        self._observe(store.view_num_rows(view))

    def finish_slots(self, num_tokens: int) -> None:
        """Never compressed: what was added to the prompt is original."""
        quantized = self.rows.get(Tier.QUANTIZED, 0)
        original = num_tokens * self.geometry.num_layers - quantized
        self._observe({Tier.ORIGINAL: original, Tier.QUANTIZED: quantized})

    def planned(self, plan: TierPlan, absent: torch.Tensor | None = None) -> None:
        """Count a plan and the rows that it drops; ``absent`` bool [L, N] were not there before."""
        evicted = plan.tiers == Tier.EVICTED
        if absent is not None:
            evicted &= ~absent
        self.rows_evicted += int(evicted.sum())
        self.times_planned += 1

    def _observe(self, rows: dict[Tier, int]) -> None:
        self.rows = dict(rows)
        if self._bytes(rows) >= self._bytes(self.peak_rows):
            self.peak_rows = dict(rows)

    def _bytes(self, rows: dict[Tier, int]) -> int:
        return sum(self.geometry.row_bytes(tier) * count for tier, count in rows.items())

    def as_dict(self) -> dict[str, int]:
        """Rows and bytes by tier at the end and at the peak, rows evicted, times planned, and the
        chunks after which a prompt larger than the arena was compressed."""
        found: dict[str, int] = {}
        for prefix, rows in (("", self.rows), ("peak_", self.peak_rows)):
            for tier in STORED_TIERS:
                name, count = tier.name.lower(), rows.get(tier, 0)
                found[f"{prefix}rows_{name}"] = count
                found[f"{prefix}bytes_{name}"] = count * self.geometry.row_bytes(tier)
        return found | {
            "rows_evicted": self.rows_evicted,
            "times_planned": self.times_planned,
            "chunks_compressed": self.chunks_compressed,
        }
