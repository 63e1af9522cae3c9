"""Makes the views of requests, and plans them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Tier, TierPlan
from arkv_sglang.engine.planning import plan_prompt, plan_view
from arkv_sglang.engine.prompt import PromptScores
from arkv_sglang.engine.request_state import RequestState, Totals, give_up
from arkv_sglang.kernels.api import NaNError
from arkv_sglang.sizes import Sizes
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView


@dataclass
class Compressor:
    """Works on one request at a time.

    ``room_freed``: whether a view was made or planned again since the caller last reset it.
    """

    config: ArkvConfig
    store: KVStore
    sizes: Sizes
    totals: Totals
    room_freed: bool = False

    def plan_of(self, state: RequestState, num_tokens: int) -> TierPlan:
        """The view that a waiting request would get now, under its budget of now."""
        assert state.scores is not None
        if state.plan is None or state.plan.tiers.shape[1] != num_tokens:
            budget = self.sizes.budget_bytes(num_tokens)
            state.plan = plan_prompt(
                self.config, self.store.geometry, state.scores, num_tokens, budget
            )
        return state.plan

    def make_view(self, state: RequestState, slots: torch.Tensor, shared: torch.Tensor) -> None:
        """Of NaN, which cannot be quantized, nothing is kept, and the request is given up."""
        plan, scores = self.plan_of(state, len(slots)), state.scores
        assert scores is not None
        try:
            state.view = self._create_view(scores, plan, slots, shared)
        except NaNError:
            give_up(state.req)
            # The room that it was counted on to give is needed now.
            plan = TierPlan(torch.full_like(plan.tiers, Tier.EVICTED))
            state.view = self._create_view(scores, plan, slots, shared)
        self.totals.privatized += 1
        self.room_freed = True
        state.record.planned(plan)
        state.record.observe_view(self.store, state.view)
        state.plan, state.scores = None, scores.without_tokens()

    def _create_view(
        self, scores: PromptScores, plan: TierPlan, slots: torch.Tensor, shared: torch.Tensor
    ) -> RequestView:
        padded = scores.padded(len(slots))
        return self.store.create_view(
            slots,
            plan,
            torch.arange(len(slots), device=slots.device),
            padded.mean,
            padded.variance,
            scores.num_observations(len(slots)),
            shared,
        )

    def excess_bytes(self, state: RequestState, slack: float) -> float:
        """Bytes by which the view is past its budget and ``slack``; negative where it is not."""
        assert state.view is not None
        limit = self.sizes.budget_bytes(state.text_tokens) * (1 + slack)
        if self.config.policy == "arkv-paper":
            # The paper counts tokens, whatever their tier.
            rows = sum(self.store.view_num_rows(state.view).values())
            return rows * self.store.geometry.row_bytes(Tier.ORIGINAL) - limit
        return sum(self.store.view_bytes(state.view).values()) - limit

    def replan(self, state: RequestState) -> bool:
        """Under the budget of now. False: the request was given up."""
        assert state.view is not None and state.scores is not None
        state.record.observe_view(self.store, state.view)
        now = self.store.view_state(state.view)
        num_tokens = state.req.kv.kv_committed_len
        budget = self.sizes.budget_bytes(state.text_tokens)
        plan = plan_view(
            self.config, self.store.geometry, now, state.scores.oq_ratio, num_tokens, budget
        )
        try:
            self.store.replan_view(state.view, plan)
        except NaNError:
            give_up(state.req)
            return False
        state.record.planned(plan, absent=now.tiers == Tier.EVICTED)
        self.totals.replanned += 1
        self.room_freed = True
        return True
