"""Plans of one request's view: statistics and a byte budget in, tiers out. Pure functions."""

from __future__ import annotations

import torch

from arkv_sglang import policy
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry, Tier, TierPlan
from arkv_sglang.engine.prompt import PromptScores
from arkv_sglang.storage.views import ViewState


def plan_prompt(
    config: ArkvConfig,
    geometry: Geometry,
    prompt: PromptScores,
    num_tokens: int,
    budget_bytes: int,
) -> TierPlan:
    """For a prompt and what was decoded since, ``num_tokens`` in all, in the order of the text."""
    scores = prompt.padded(num_tokens).scores
    positions = torch.arange(num_tokens, device=scores.device)
    split = _shares(config, geometry, num_tokens, prompt.oq_ratio, budget_bytes)
    return policy.assign(scores, policy.protection(positions, num_tokens, config), split)


def plan_view(
    config: ArkvConfig,
    geometry: Geometry,
    view: ViewState,
    oq_ratio: torch.Tensor,
    num_tokens: int,
    budget_bytes: int,
) -> TierPlan:
    """For the rows that are left of a text of ``num_tokens``. ``oq_ratio``: fp32 [L]."""
    scores = policy.heavy_hitter(view.mean, view.variance, config.gamma)
    absent = view.tiers == Tier.EVICTED
    scores = _pool_by_position(scores, view.positions, absent, config)
    num_rows = int((~absent).sum(1).max())
    split = _shares(config, geometry, num_rows, oq_ratio, budget_bytes)
    return policy.assign(scores, policy.protection(view.positions, num_tokens, config), split)


def _shares(
    config: ArkvConfig,
    geometry: Geometry,
    num_rows: int,
    oq_ratio: torch.Tensor,
    budget_bytes: int,
) -> policy.Shares:
    return policy.shares(
        config,
        geometry,
        num_rows=num_rows,
        num_protected=min(config.num_protected, num_rows),
        budget_bytes=budget_bytes,
        oq_ratio=oq_ratio,
    )


def _pool_by_position(
    scores: torch.Tensor, positions: torch.Tensor, absent: torch.Tensor, config: ArkvConfig
) -> torch.Tensor:
    """Pool [L, N] scores over neighbours in the text; rows of a view are in no order."""
    order = positions.masked_fill(absent, torch.iinfo(positions.dtype).max).argsort(dim=1)
    in_text = scores.masked_fill(absent, 0).gather(1, order)
    pooled = torch.empty_like(scores).scatter_(1, order, policy.pool(in_text, config.pooling))
    return pooled.masked_fill(absent, -torch.inf)
