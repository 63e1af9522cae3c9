"""Where the rows of SGLang's slots are."""

from __future__ import annotations

import torch

from arkv_sglang.core import NO_ROW


class SlotTable:
    """``rows``: int32 [L, S + 1] row codes, ``NO_ROW`` where there is none, as for slot 0."""

    def __init__(self, num_layers: int, num_slots: int, device: torch.device | str) -> None:
        self.rows = torch.full(
            (num_layers, num_slots + 1), NO_ROW, dtype=torch.int32, device=device
        )

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def get(self, slots: torch.Tensor) -> torch.Tensor:
        """Row codes int32 [L, n] of ``slots`` int64 [n]."""
        return self.rows.index_select(1, slots)

    def set(self, slots: torch.Tensor, rows: torch.Tensor | int) -> None:
        """Point ``slots`` at ``rows`` (int32 [L, n], or one code for all)."""
        self.rows[:, slots] = rows

    def reset(self) -> None:
        self.rows.fill_(NO_ROW)


def check_distinct(slots: torch.Tensor) -> None:
    """Raise ``ValueError`` when a slot other than the padding slot 0 occurs twice (one sync)."""
    ordered = slots.sort().values
    twice = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
    if bool(twice.any()):
        slot = int(ordered[1:][twice][0])
        raise ValueError(f"slots must be distinct, got slot {slot} more than once")


def check_bindable(slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``slots`` are distinct, not 0, and without row in ``rows``."""
    check_distinct(slots)
    if bool((slots == 0).any()):
        raise ValueError("slots must not hold the padding slot 0")
    bound = rows[slots] >= 0
    if bool(bound.any()):
        raise ValueError(f"slots must have no rows, got slot {int(slots[bound][0])} that has")
