"""What the scheduler process knows of its requests: prompt statistics, plans, views, figures.

One per scheduler process. Policies plan, the store applies; this decides when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from arkv_sglang import policy
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry, Tier, TierPlan
from arkv_sglang.engine.prompt import PromptScores, WindowQueries, score_prompt
from arkv_sglang.engine.record import RequestRecord
from arkv_sglang.kernels.api import NaNError
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView


@dataclass
class RequestState:
    """One request that holds KV. Keyed by its ``req_pool_idx``."""

    queries: WindowQueries
    record: RequestRecord
    # Set from the end of the prompt until the view stands.
    plan: TierPlan | None = None
    scores: PromptScores | None = None
    view: RequestView | None = None


@dataclass
class Totals:
    """Counts since start."""

    privatized: int = 0
    taken_over: int = 0
    replanned: int = 0
    peak_requests: int = 0


@dataclass
class Controller:
    """Implements `arkv_sglang.cache.radix.RequestController`."""

    config: ArkvConfig
    store: KVStore
    scale: float = 0.0
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.states: dict[int, RequestState] = {}
        self._room_freed = False
        self.demotes = self.config.policy != "original"

    @property
    def geometry(self) -> Geometry:
        return self.store.geometry

    def state(self, req_pool_idx: int) -> RequestState:
        """The request's state, made when its first chunk runs."""
        found = self.states.get(req_pool_idx)
        if found is None:
            queries = WindowQueries(self.geometry.num_layers, self.config.window)
            found = self.states[req_pool_idx] = RequestState(queries, RequestRecord(self.geometry))
            self.totals.peak_requests = max(self.totals.peak_requests, len(self.states))
        return found

    @property
    def num_views(self) -> int:
        return sum(state.view is not None for state in self.states.values())

    @property
    def num_waiting(self) -> int:
        """Requests whose view waits for room."""
        return sum(state.plan is not None for state in self.states.values())

    def view(self, req_pool_idx: int) -> RequestView | None:
        found = self.states.get(req_pool_idx)
        return None if found is None else found.view

    # -- the end of a prompt --

    def compresses(self, num_tokens: int, max_new_tokens: int) -> bool:
        """Whether a prompt of ``num_tokens`` gets a view.

        A fixed cap counts what may still be generated, since the cap does not grow with the text.
        """
        if self.config.when == "always":
            return True
        if num_tokens <= self.config.min_tokens:
            return False
        longest = num_tokens + (max_new_tokens if isinstance(self.config.budget, int) else 0)
        return longest * self.geometry.token_bytes > self.budget_bytes(num_tokens)

    def budget_bytes(self, num_tokens: int) -> int:
        """The request's byte budget; never less than its protected tokens in bf16."""
        token_bytes = self.geometry.token_bytes
        floor = min(self.config.num_protected, num_tokens) * token_bytes
        return max(self.config.budget_bytes(num_tokens, token_bytes), floor)

    def finish_prompt(self, req: Any, slots: torch.Tensor) -> torch.Tensor | None:
        """Score the prompt and plan its view; returns each token's attention, fp32 [T].

        None where there is none to speak of: no pass has run, or the model gave NaN.
        """
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or not state.queries.complete:
            return None
        prompt = score_prompt(self.config, self.store, state.queries, slots, self.scale)
        state.queries.clear()
        state.record.observe_slots(self.store, slots)
        compresses = self.compresses(len(slots), _remaining_tokens(req))
        if bool(prompt.attention.isnan().any()):
            if compresses:
                _give_up(req)
            return None
        if compresses:
            state.scores = prompt
            state.plan = self._plan(
                prompt.scores,
                torch.arange(len(slots), device=slots.device),
                len(slots),
                len(slots),
                prompt.oq_ratio,
            )
        return prompt.attention

    def _plan(
        self,
        scores: torch.Tensor,
        positions: torch.Tensor,
        num_rows: int,
        num_tokens: int,
        oq_ratio: torch.Tensor | None,
    ) -> TierPlan:
        split = policy.shares(
            self.config,
            self.geometry,
            num_rows=num_rows,
            num_protected=min(self.config.num_protected, num_rows),
            budget_bytes=self.budget_bytes(num_tokens),
            oq_ratio=oq_ratio,
        )
        return policy.assign(scores, policy.protection(positions, num_tokens, self.config), split)

    # -- views --

    def has_view(self, req: Any) -> bool:
        return self.view(req.kv.req_pool_idx) is not None

    def wants_view(self, req: Any) -> bool:
        found = self.states.get(req.kv.req_pool_idx)
        return found is not None and found.plan is not None and found.view is None

    def view_units(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> int:
        """Net units that `make_view` would take; negative when it frees some."""
        return self.store.view_units_needed(slots, self._plan_of(req, len(slots)), shared)

    def make_view(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> bool:
        """Privatize; the room must be there (`view_units`). False: the request was given up."""
        state = self.states[req.kv.req_pool_idx]
        plan = self._plan_of(req, len(slots))
        assert state.scores is not None
        mean, variance = state.scores.statistics(len(slots))
        try:
            state.view = self.store.create_view(
                slots,
                plan,
                torch.arange(len(slots), device=slots.device),
                mean,
                variance,
                state.scores.num_queries,
                shared,
            )
        except NaNError:
            state.plan = state.scores = None
            _give_up(req)
            return False
        self.totals.privatized += 1
        self._room_freed = True
        self.totals.taken_over += int(not bool(shared.all()))
        state.record.planned(plan)
        state.record.observe_view(self.store, state.view)
        state.plan = None
        state.scores = state.scores.without_tokens()
        return True

    def _plan_of(self, req: Any, num_tokens: int) -> TierPlan:
        """The waiting plan; tokens that were decoded since it was made stay original."""
        plan = self.states[req.kv.req_pool_idx].plan
        assert plan is not None
        extra = num_tokens - plan.tiers.shape[1]
        if extra == 0:
            return plan
        return TierPlan(torch.nn.functional.pad(plan.tiers, (0, extra), value=int(Tier.ORIGINAL)))

    def outgrown(self, state: RequestState, num_tokens: int) -> bool:
        """Whether the view is past its budget by more than the slack."""
        assert state.view is not None
        limit = self.budget_bytes(num_tokens) * (1 + self.config.slack)
        if self.config.policy == "arkv-paper":
            # The paper counts tokens, whatever their tier.
            rows = sum(self.store.view_num_rows(state.view).values())
            return rows * self.geometry.row_bytes(Tier.ORIGINAL) > limit
        return sum(self.store.view_bytes(state.view).values()) > limit

    def tighten(self, req: Any) -> None:
        """Plan the request's view again if it has outgrown its budget."""
        state = self.states.get(req.kv.req_pool_idx)
        num_tokens = req.kv.kv_committed_len
        if state is None or state.view is None or not self.outgrown(state, num_tokens):
            return
        state.record.observe_view(self.store, state.view)
        now = self.store.view_state(state.view)
        scores = policy.heavy_hitter(now.mean, now.variance, self.config.gamma)
        absent = now.tiers == Tier.EVICTED
        scores = _pool_by_position(scores, now.positions, absent, self.config)
        num_rows = int((~absent).sum(1).max())
        assert state.scores is not None
        plan = self._plan(scores, now.positions, num_rows, num_tokens, state.scores.oq_ratio)
        try:
            self.store.replan_view(state.view, plan)
        except NaNError:
            _give_up(req)
            return
        state.record.planned(plan, absent)
        self.totals.replanned += 1
        self._room_freed = True

    def final_tokens(self, num_tokens: int, max_new_tokens: int) -> float:
        """bf16-token equivalents that a request needs at most once its prompt is behind it."""
        total = num_tokens + max_new_tokens
        if not self.compresses(num_tokens, max_new_tokens):
            return float(total)
        budget = self.budget_bytes(total) / self.geometry.token_bytes
        return min(float(total), budget * (1 + self.config.slack) + 1)

    def growth_tokens(self, req: Any, max_new_tokens: float) -> float:
        """bf16-token equivalents that a running request may still take."""
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or state.view is None:
            return max_new_tokens
        now = sum(self.store.view_bytes(state.view).values()) / self.geometry.token_bytes
        final = self.final_tokens(req.kv.kv_committed_len, int(max_new_tokens))
        return min(max_new_tokens, max(final - now, 1.0))

    def take_room_freed(self) -> bool:
        """Whether views were made or tightened since this was last asked."""
        freed, self._room_freed = self._room_freed, False
        return freed

    # -- the end of a request --

    def release(self, req: Any) -> None:
        """Drop the request's view and leave its figures on ``req.arkv_record``."""
        state = self.states.pop(req.kv.req_pool_idx, None)
        if state is None:
            return
        if state.view is not None:
            state.record.observe_view(self.store, state.view)
            self.store.release_view(state.view)
        else:
            state.record.finish_slots(req.kv.kv_committed_len)
        req.arkv_record = state.record.as_dict()

    def clear(self) -> None:
        self.states.clear()


def _give_up(req: Any) -> None:
    """End one request at its next step, and leave the others alone."""
    # Without a status code: with one, the other requests of the same call would get an exception.
    req.to_finish = FINISH_ABORT("the model gave NaN for this request, and NaN cannot be quantized")


def _remaining_tokens(req: Any) -> int:
    return max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)


def _pool_by_position(
    scores: torch.Tensor, positions: torch.Tensor, absent: torch.Tensor, config: ArkvConfig
) -> torch.Tensor:
    """Pool [L, N] scores over neighbours in the text; rows of a view are in no order."""
    order = positions.masked_fill(absent, torch.iinfo(positions.dtype).max).argsort(dim=1)
    in_text = scores.masked_fill(absent, 0).gather(1, order)
    pooled = torch.empty_like(scores).scatter_(1, order, policy.pool(in_text, config.pooling))
    return pooled.masked_fill(absent, -torch.inf)
