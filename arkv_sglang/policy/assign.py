"""Tiers under a byte budget: one assignment, and the shares that each policy gives it.

Tokens are ordered by score; the first ``num_original`` stay bf16, the next ``num_quantized`` become
fp8, the rest are evicted. A policy is nothing but those two numbers per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry, Tier, TierPlan


@dataclass(frozen=True)
class Shares:
    """Rows per layer and tier: host integers, or int64 [L, 1] where layers differ."""

    num_original: int | torch.Tensor
    num_quantized: int | torch.Tensor


def shares(
    config: ArkvConfig,
    geometry: Geometry,
    *,
    num_rows: int,
    num_protected: int,
    budget_bytes: int,
    oq_ratio: torch.Tensor | None = None,
) -> Shares:
    """Split a request's ``budget_bytes`` (all layers together) over the tiers of its policy.

    ``num_rows``: candidates per layer. ``num_protected`` of them are never evicted, whatever the
    budget. ``oq_ratio``: fp32 [L], for `arkv-paper` alone.
    """
    per_layer = budget_bytes // geometry.num_layers
    original = geometry.row_bytes(Tier.ORIGINAL)
    quantized = geometry.row_bytes(Tier.QUANTIZED)
    if config.policy == "original":
        return Shares(min(max(per_layer // original, num_protected), num_rows), 0)
    if config.policy == "arkv-paper":
        return _paper_shares(per_layer // original, num_rows, num_protected, oq_ratio)
    room = per_layer - num_rows * quantized
    if room >= 0:
        # Nothing is evicted; what is left over pays for bf16 sinks and window.
        bf16 = min(num_protected, room // (original - quantized))
        return Shares(bf16, num_rows - bf16)
    rest = max(per_layer - num_protected * original, 0) // quantized
    return Shares(num_protected, min(rest, num_rows - num_protected))


def _paper_shares(
    budget_tokens: int, num_rows: int, num_protected: int, oq_ratio: torch.Tensor | None
) -> Shares:
    """C tokens in every layer, whatever their tier; the OQ ratio says how many stay original."""
    assert oq_ratio is not None, "arkv-paper needs the layers' OQ ratio"
    kept = min(max(budget_tokens, num_protected), num_rows)
    original = (kept * oq_ratio).floor().long().clamp(num_protected, kept).unsqueeze(1)
    return Shares(original, kept - original)


def assign(scores: torch.Tensor, protected: torch.Tensor, split: Shares) -> TierPlan:
    """Plan tiers for fp32 ``scores`` [L, N]; -inf marks a candidate that is not there.

    ``protected``: int64 [L, N] or [N], 0 for ordinary tokens; higher values rank above all of them.
    """
    absent = scores == -torch.inf
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    rank_of = protected.expand_as(scores).masked_fill(absent, -1).gather(1, by_score)
    order = by_score.gather(1, rank_of.argsort(dim=1, descending=True, stable=True))
    rank = torch.empty_like(order)
    steps = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    rank.scatter_(1, order, steps)
    tiers = torch.full(scores.shape, Tier.EVICTED, dtype=torch.int8, device=scores.device)
    tiers[rank < split.num_original + split.num_quantized] = Tier.QUANTIZED
    tiers[rank < split.num_original] = Tier.ORIGINAL
    return TierPlan(tiers.masked_fill_(absent, Tier.EVICTED))


def protection(positions: torch.Tensor, num_tokens: int, config: ArkvConfig) -> torch.Tensor:
    """Rank of protected tokens, int64 like ``positions``: the newest window token highest.

    Sinks are the first ``config.sinks`` positions; the window is the last ``config.window`` of a
    text of ``num_tokens``.
    """
    assert config.sinks is not None
    recency = positions - (num_tokens - config.window) + config.sinks + 1
    in_window = positions >= num_tokens - config.window
    sink_rank = (config.sinks - positions).clamp_min(0)
    return torch.where(in_window, recency, torch.where(positions < config.sinks, sink_rank, 0))
