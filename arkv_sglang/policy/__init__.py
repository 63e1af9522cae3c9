"""Policies: attention statistics in, tier plan out. Pure torch, no state."""

from arkv_sglang.policy.assign import Shares, assign, protection, shares
from arkv_sglang.policy.scores import heavy_hitter, merge, oq_ratio, pool

__all__ = ["Shares", "assign", "heavy_hitter", "merge", "oq_ratio", "pool", "protection", "shares"]
