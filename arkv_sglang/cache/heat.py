"""Heavy-hitter score of a tree node: attention that its tokens received, decayed with time."""

from __future__ import annotations

import math
import time
from typing import Any

HALF_LIFE_SEC = 300.0


class Heat:
    """Attention mass per token of one node. Attached to SGLang's `TreeNode` as ``node.heat``."""

    __slots__ = ("mass", "time")

    def __init__(self, mass: float = 0.0, at: float | None = None) -> None:
        self.mass = mass
        self.time = time.monotonic() if at is None else at

    def decayed(self, now: float) -> float:
        return self.mass * math.exp2((self.time - now) / HALF_LIFE_SEC)

    @property
    def rank(self) -> float:
        """Orders heats as their mass would at any one moment: all of them decay alike."""
        return math.log2(self.mass) + self.time / HALF_LIFE_SEC if self.mass > 0 else -math.inf

    def add(self, mass: float, now: float) -> None:
        self.mass = self.decayed(now) + mass
        self.time = now

    def copy(self) -> Heat:
        return Heat(self.mass, self.time)


def heat_of(node: Any) -> Heat:
    """The node's heat, made on first use."""
    heat: Heat | None = getattr(node, "heat", None)
    if heat is None:
        heat = node.heat = Heat()
    return heat


class HeatStrategy:
    """SGLang eviction strategy: coldest per token first, least recently used among equals."""

    def get_priority(self, node: Any) -> tuple[float, float]:
        return heat_of(node).rank, node.last_access_time
