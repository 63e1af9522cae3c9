"""What the scheduler process knows of its requests: prompt statistics, plans, views, figures.

One per scheduler process. Policies plan, the store applies; this decides when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from arkv_sglang import policy
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry, Tier, TierPlan, row_tier
from arkv_sglang.engine.prompt import PromptScores, WindowQueries, score_rows
from arkv_sglang.engine.record import RequestRecord
from arkv_sglang.kernels.api import NaNError
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import MAX_COUNT, RequestView, ViewState

OQ_SHARE = 0.1
"""Share of the latest prompt in the running mean of the layers' OQ ratio."""


@dataclass
class RequestState:
    """One request that holds KV. Keyed by its ``req_pool_idx``."""

    queries: WindowQueries
    record: RequestRecord
    # Set from the end of a prompt that is to be compressed. Until the view stands, the scores have
    # their tokens, and the plan is what the view would be now.
    req: Any = None
    scores: PromptScores | None = None
    plan: TierPlan | None = None
    view: RequestView | None = None
    # Tokens of a prompt larger than the arena that the view has taken in so far.
    num_compressed: int = 0

    @property
    def waits(self) -> bool:
        """Whether the request holds its whole prompt until its view is made."""
        return self.scores is not None and self.view is None


@dataclass
class Totals:
    """Counts since start."""

    privatized: int = 0
    taken_over: int = 0
    replanned: int = 0
    tightened_under_pressure: int = 0
    retracted: int = 0
    peak_requests: int = 0


@dataclass
class Controller:
    """Implements `arkv_sglang.cache.radix.RequestController`."""

    config: ArkvConfig
    store: KVStore
    scale: float = 0.0
    # Tokens of one prefill pass; None: prompts are prefilled whole.
    chunk_tokens: int | None = None
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.states: dict[int, RequestState] = {}
        self._room_freed = False
        self._tolerance: torch.Tensor | None = None
        self.demotes = self.config.policy != "original"
        self.privatizes_at_once = self.config.when != "pressure"

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
        return sum(state.waits for state in self.states.values())

    @property
    def statistics_bytes(self) -> int:
        """Bytes of what is known of prompts: window queries until they end, scores from then on."""
        return sum(
            state.queries.num_bytes + (state.scores.num_bytes if state.scores else 0)
            for state in self.states.values()
        )

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
        """Score the prompt; returns each token's attention, fp32 [T].

        None where there is none to speak of: no pass has run, or the model gave NaN.
        """
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or not state.queries.complete:
            return None
        rows = self.store.slot_row_table(slots)
        prompt = score_rows(self.config, self.store, state.queries, rows, self.scale)
        state.queries.clear()
        state.record.observe_slots(self.store, slots)
        compresses = self.compresses(len(slots), _remaining_tokens(req))
        if bool(prompt.attention.isnan().any()):
            if compresses:
                _give_up(req)
            return None
        self._learn_tolerance(prompt.oq_ratio)
        if compresses:
            state.req, state.scores = req, prompt
        return prompt.attention

    def _learn_tolerance(self, oq_ratio: torch.Tensor) -> None:
        before = oq_ratio if self._tolerance is None else self._tolerance
        self._tolerance = before.lerp(oq_ratio, OQ_SHARE)

    def layers_by_tolerance(self) -> list[int]:
        """Layers, those first that recent prompts' OQ ratio gives the fewest original tokens."""
        if self._tolerance is None:
            return list(range(self.geometry.num_layers))
        return list(self._tolerance.argsort(stable=True).tolist())

    def _plan(
        self,
        scores: torch.Tensor,
        positions: torch.Tensor,
        num_rows: int,
        num_tokens: int,
        oq_ratio: torch.Tensor | None,
        budget_tokens: int | None = None,
    ) -> TierPlan:
        """For a text of ``num_tokens``, under the budget of ``budget_tokens`` if that is given."""
        split = policy.shares(
            self.config,
            self.geometry,
            num_rows=num_rows,
            num_protected=min(self.config.num_protected, num_rows),
            budget_bytes=self.budget_bytes(budget_tokens or num_tokens),
            oq_ratio=oq_ratio,
        )
        return policy.assign(scores, policy.protection(positions, num_tokens, self.config), split)

    # -- prompts larger than the arena --

    def oversized(self, num_tokens: int) -> bool:
        """Whether the arena cannot hold a prompt of ``num_tokens`` in bf16 but may hold its view.

        Such a prompt is compressed after each chunk, and no other is.
        """
        too_large = (num_tokens + 1) * self.geometry.token_units >= self.store.num_units
        return too_large and self.chunk_tokens is not None and self.compresses(num_tokens, 0)

    def compresses_chunks(self, req: Any) -> bool:
        return self.oversized(len(req.full_untruncated_fill_ids))

    def late_by_a_chunk(self, req: Any) -> bool:
        """Whether a chunk has run that the view in the making has not taken in."""
        state = self.states.get(req.kv.req_pool_idx)
        return state is not None and 0 < state.num_compressed < req.extend_end

    def prefill_tokens(self, num_tokens: int, extend_tokens: int) -> float:
        """bf16-token equivalents that a prompt takes at most until it is behind, of which
        ``extend_tokens`` are not in the tree."""
        if not self.oversized(num_tokens):
            return extend_tokens
        assert self.chunk_tokens is not None
        view = self.budget_bytes(num_tokens) / self.geometry.token_bytes
        return view + min(self.chunk_tokens, num_tokens)

    def compress_chunk(self, req: Any, slots: torch.Tensor) -> None:
        """Take what was prefilled since the last time into the request's view, and plan it again.

        ``slots``: int64 [T], of the prompt so far. The budget is that of the whole prompt, so that
        nothing is given up that will have its place.
        """
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or len(slots) == state.num_compressed or not state.queries.complete:
            return
        state.req = req
        view = state.view = state.view or self.store.add_view()
        chunk = slots[state.num_compressed :]
        positions = torch.arange(state.num_compressed, len(slots), device=slots.device)
        state.num_compressed = len(slots)
        now = self.store.view_state(view)
        rows = torch.cat((now.rows, self.store.slot_row_table(chunk)), dim=1)
        found = score_rows(self.config, self.store, state.queries, rows, self.scale)
        state.queries.clear()
        if bool(found.attention.isnan().any()):
            self.store.release_slots(chunk)
            _give_up(req)
            return
        self._learn_tolerance(found.oq_ratio)
        content = _with_chunk(now, rows, positions, found)
        self.store.extend_view(view, chunk, content)
        state.scores = found.without_tokens()
        state.record.chunks_compressed += 1
        if not self._replan(state, len(req.full_untruncated_fill_ids)):
            # What cannot be quantized would not fit.
            self.store.release_view(view)
            state.view = self.store.add_view()

    # -- views --

    def has_view(self, req: Any) -> bool:
        return self.view(req.kv.req_pool_idx) is not None

    def waits(self, req: Any) -> bool:
        found = self.states.get(req.kv.req_pool_idx)
        return found is not None and found.waits

    def waiting(self) -> list[Any]:
        """Requests that hold their whole prompt until their view is made."""
        return [state.req for state in self.states.values() if state.waits]

    def most_view_units(self, num_tokens: int) -> int:
        """Units that a view of a request of ``num_tokens`` takes at most. No device sync."""
        return self.budget_bytes(num_tokens) // self.geometry.unit_bytes

    def view_units(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> int:
        """Net units that `make_view` would take; negative when it frees some."""
        return self.store.view_units_needed(slots, self._plan_of(req, len(slots)), shared)

    def make_view(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> bool:
        """Privatize; the room must be there (`view_units`). False: the request was given up."""
        state = self.states[req.kv.req_pool_idx]
        plan, scores = self._plan_of(req, len(slots)), state.scores
        assert scores is not None
        padded = scores.padded(len(slots))
        try:
            state.view = self.store.create_view(
                slots,
                plan,
                torch.arange(len(slots), device=slots.device),
                padded.mean,
                padded.variance,
                scores.num_observations(len(slots)),
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
        state.plan, state.scores = None, scores.without_tokens()
        return True

    def _plan_of(self, req: Any, num_tokens: int) -> TierPlan:
        """The view that a waiting request would get now, under its budget of now."""
        state = self.states[req.kv.req_pool_idx]
        assert state.scores is not None
        if state.plan is None or state.plan.tiers.shape[1] != num_tokens:
            scores = state.scores.padded(num_tokens).scores
            positions = torch.arange(num_tokens, device=scores.device)
            oq_ratio = state.scores.oq_ratio
            state.plan = self._plan(scores, positions, num_tokens, num_tokens, oq_ratio)
        return state.plan

    def _excess_bytes(self, state: RequestState, slack: float) -> float:
        """Bytes by which the view is past its budget and ``slack``; negative where it is not."""
        assert state.view is not None
        limit = self.budget_bytes(state.req.kv.kv_committed_len) * (1 + slack)
        if self.config.policy == "arkv-paper":
            # The paper counts tokens, whatever their tier.
            rows = sum(self.store.view_num_rows(state.view).values())
            return rows * self.geometry.row_bytes(Tier.ORIGINAL) - limit
        return sum(self.store.view_bytes(state.view).values()) - limit

    def tighten(self, req: Any) -> None:
        """Plan the request's view again if it has outgrown its budget by more than the slack."""
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or state.view is None:
            return
        if self._excess_bytes(state, self.config.slack) > 0:
            self._replan(state)

    def tighten_views(self, num_units: int) -> None:
        """Take views down to their budgets until ``num_units`` more units are free.

        Those that are furthest past theirs come first, so that as few as possible change.
        """
        enough = self.store.free_units + num_units
        excess = [
            (self._excess_bytes(state, slack=0), index)
            for index, state in self.states.items()
            if state.view is not None
        ]
        for bytes_over, index in sorted(excess, reverse=True):
            if self.store.free_units >= enough or bytes_over <= 0:
                return
            self._replan(self.states[index])
            self.totals.tightened_under_pressure += 1

    def _replan(self, state: RequestState, budget_tokens: int | None = None) -> bool:
        """False: the request was given up."""
        assert state.view is not None and state.scores is not None
        state.record.observe_view(self.store, state.view)
        now = self.store.view_state(state.view)
        scores = policy.heavy_hitter(now.mean, now.variance, self.config.gamma)
        absent = now.tiers == Tier.EVICTED
        scores = _pool_by_position(scores, now.positions, absent, self.config)
        num_rows = int((~absent).sum(1).max())
        num_tokens = state.req.kv.kv_committed_len
        oq_ratio = state.scores.oq_ratio
        plan = self._plan(scores, now.positions, num_rows, num_tokens, oq_ratio, budget_tokens)
        try:
            self.store.replan_view(state.view, plan)
        except NaNError:
            _give_up(state.req)
            return False
        state.record.planned(plan, absent)
        self.totals.replanned += 1
        self._room_freed = True
        return True

    def final_tokens(self, num_tokens: int, max_new_tokens: int) -> float:
        """bf16-token equivalents that a request needs at most once its prompt is behind it."""
        total = num_tokens + max_new_tokens
        if not self.compresses(num_tokens, max_new_tokens):
            return float(total)
        budget = self.budget_bytes(total) / self.geometry.token_bytes
        return min(float(total), budget * (1 + self.config.slack) + 1)

    def growth_tokens(self, req: Any, max_new_tokens: float, compressible: bool) -> float:
        """bf16-token equivalents that a running request may still take.

        ``compressible``: it waits for its view, and what making that would free counts as room.
        """
        state = self.states.get(req.kv.req_pool_idx)
        num_tokens = req.kv.kv_committed_len
        if state is not None and state.view is not None:
            held = sum(self.store.view_bytes(state.view).values())
        elif compressible:
            held = self.most_view_units(num_tokens) * self.geometry.unit_bytes
        else:
            return max_new_tokens
        final = self.final_tokens(num_tokens, int(max_new_tokens))
        return min(max_new_tokens, max(final - held / self.geometry.token_bytes, 1.0))

    def comes_back(self, req: Any, more_tokens: int = 0) -> bool:
        """Whether the request could be prefilled again, after ``more_tokens``, if thrown out.

        All of its text would be a prompt then, while its view may be of any length.
        """
        num_tokens = len(req.origin_input_ids) + len(req.output_ids) + more_tokens
        needed = self.prefill_tokens(num_tokens, num_tokens) + 1
        return needed * self.geometry.token_units < self.store.num_units

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
        self.totals.retracted += int(not req.finished() and req.to_finish is None)
        req.arkv_record = state.record.as_dict()

    def clear(self) -> None:
        self.states.clear()


def _give_up(req: Any) -> None:
    """End one request at its next step, and leave the others alone."""
    # Without a status code: with one, the other requests of the same call would get an exception.
    req.to_finish = FINISH_ABORT("the model gave NaN for this request, and NaN cannot be quantized")


def _with_chunk(
    view: ViewState, rows: torch.Tensor, positions: torch.Tensor, found: PromptScores
) -> ViewState:
    """The view's state with a chunk's rows behind, everyone observed by the chunk's queries.

    ``rows`` int32 [L, N + n], ``positions`` int64 [n]; ``found`` covers all N + n.
    """
    extra = (0, len(positions))
    count = F.pad(view.num_observations, extra).float()
    mean, variance, count = policy.merge(
        (F.pad(view.mean, extra), F.pad(view.variance, extra), count),
        (found.mean, found.variance, torch.full_like(count, found.num_queries)),
    )
    return ViewState(
        rows=rows,
        tiers=row_tier(rows),
        positions=torch.cat((view.positions, positions.expand(rows.shape[0], -1)), dim=1),
        mean=mean,
        variance=variance,
        num_observations=count.clamp_max(MAX_COUNT).to(torch.int16),
    )


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
