"""What a plan does to rows, counted on the host."""

from __future__ import annotations

import torch

from arkv_sglang.core import ROW_UNITS, STORED_TIERS, Tier, row_tier

RowCounts = dict[Tier, int]
"""Rows by stored tier, over all layers."""

ALL_TIERS = (Tier.EVICTED, *STORED_TIERS)


def no_rows() -> RowCounts:
    return dict.fromkeys(STORED_TIERS, 0)


def reachable(rows: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """Tier (int8) that each row gets when ``asked`` (int8) is planned: what was lost stays lost."""
    source = row_tier(rows)
    kept = torch.maximum(source, asked)
    return kept.masked_fill_((source < 0) | (asked < 0), int(Tier.EVICTED))


def units_of(tier: Tier) -> int:
    """Arena units of a row in ``tier``."""
    return ROW_UNITS.get(tier, 0)


class Transitions:
    """How many rows go from which tier to which, owned and shared ones apart. One device sync.

    ``rows`` int32 [L, n], ``target`` int8 [L, n] (reachable tiers), ``shared`` bool [n]: rows that
    stay with their owner and are copied. ``width``: the most rows that any layer keeps.
    """

    def __init__(self, rows: torch.Tensor, target: torch.Tensor, shared: torch.Tensor) -> None:
        k = len(ALL_TIERS)
        key = (shared.long() * k + row_tier(rows) + 1) * k + target + 1
        counts = torch.bincount(key.flatten(), minlength=2 * k * k)
        width = (target >= 0).sum(dim=1).amax()
        *flat, self.width = torch.cat([counts, width[None]]).tolist()
        self._counts = {
            (copied, source, to): flat[(copied * k + i) * k + j]
            for copied in (False, True)
            for i, source in enumerate(ALL_TIERS)
            for j, to in enumerate(ALL_TIERS)
        }

    @property
    def owned(self) -> RowCounts:
        """Owned rows that are kept, by the tier that they end in."""
        return self._ending(shared=False)

    @property
    def copied(self) -> RowCounts:
        """Copies of shared rows, by tier."""
        return self._ending(shared=True)

    def _ending(self, shared: bool) -> RowCounts:
        return {to: sum(self._counts[shared, s, to] for s in STORED_TIERS) for to in STORED_TIERS}

    @property
    def evicted(self) -> int:
        """Candidates with a row that the plan drops, shared ones included."""
        gone = Tier.EVICTED
        return sum(self._counts[shared, s, gone] for shared in (False, True) for s in STORED_TIERS)

    @property
    def units_needed(self) -> int:
        """Units that the copies take, less those that the owned rows give up. May be negative."""
        return sum(
            n * (units_of(to) - (0 if shared else units_of(source)))
            for (shared, source, to), n in self._counts.items()
        )
