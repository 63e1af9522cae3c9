"""What the scheduler process knows of its requests: prompt statistics, plans, views, figures.

One per scheduler process. Policies plan, the store applies; this decides when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry
from arkv_sglang.engine.chunks import take_in_chunk
from arkv_sglang.engine.compressor import Compressor
from arkv_sglang.engine.prompt import WindowQueries, score_rows
from arkv_sglang.engine.record import RequestRecord
from arkv_sglang.engine.request_state import RequestState, Totals, give_up
from arkv_sglang.sizes import Sizes
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import RequestView

OQ_SHARE = 0.1
"""Share of the latest prompt in the running mean of the layers' OQ ratio."""


@dataclass
class Controller:
    """Implements `arkv_sglang.cache.radix.RequestController`."""

    config: ArkvConfig
    store: KVStore
    scale: float = 0.0
    # Tokens of one prefill pass; None: prompts are prefilled whole.
    chunk_tokens: int | None = None
    # bf16-token equivalents by which running requests may grow, as last reckoned for admission.
    promised_tokens: float = 0.0
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.states: dict[int, RequestState] = {}
        self._sizes = Sizes(self.config, self.geometry, self.store.num_units)
        self._compressor = Compressor(self.config, self.store, self._sizes, self.totals)
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
        return sum(state.statistics_bytes for state in self.states.values())

    def view(self, req_pool_idx: int) -> RequestView | None:
        found = self.states.get(req_pool_idx)
        return None if found is None else found.view

    # -- sizes, see `Sizes` --

    def compresses(self, num_tokens: int, max_new_tokens: int) -> bool:
        return self._sizes.compresses(num_tokens, max_new_tokens)

    def budget_bytes(self, num_tokens: int) -> int:
        return self._sizes.budget_bytes(num_tokens)

    def most_view_units(self, num_tokens: int) -> int:
        return self._sizes.most_view_units(num_tokens)

    def final_tokens(self, num_tokens: int, max_new_tokens: int) -> float:
        return self._sizes.final_tokens(num_tokens, max_new_tokens)

    def oversized(self, num_tokens: int) -> bool:
        return self._sizes.oversized(num_tokens, self.chunk_tokens)

    def prefill_tokens(self, num_tokens: int, extend_tokens: int) -> float:
        return self._sizes.prefill_tokens(num_tokens, extend_tokens, self.chunk_tokens)

    def fits(
        self, room_tokens: float, num_tokens: int, max_new_tokens: int, extend_tokens: int
    ) -> bool:
        return self._sizes.fits(
            room_tokens, num_tokens, max_new_tokens, extend_tokens, self.chunk_tokens
        )

    def max_text_tokens(self, most: int) -> int:
        return self._sizes.max_text_tokens(self.chunk_tokens, most)

    # -- the end of a prompt --

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
        compresses = self.compresses(len(slots), _remaining_tokens(req)) and not req.finished()
        if bool(prompt.attention.isnan().any()):
            if compresses:
                give_up(req)
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

    # -- prompts larger than the arena --

    def compresses_chunks(self, req: Any) -> bool:
        return self.oversized(len(req.full_untruncated_fill_ids))

    def late_by_a_chunk(self, req: Any) -> bool:
        """Whether a chunk has run that the view in the making has not taken in."""
        state = self.states.get(req.kv.req_pool_idx)
        return state is not None and 0 < state.num_compressed < req.extend_end

    def compress_chunk(self, req: Any, slots: torch.Tensor) -> None:
        """Take what was prefilled since the last time into the request's view, and plan it again.

        ``slots``: int64 [T], of the prompt so far. The budget is that of the whole prompt, so that
        nothing is given up that will have its place.
        """
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or len(slots) == state.num_compressed or not state.queries.complete:
            return
        state.req = req
        if not take_in_chunk(self.config, self.store, state, slots, self.scale):
            give_up(req)
            return
        assert state.view is not None and state.scores is not None
        self._learn_tolerance(state.scores.oq_ratio)
        if not self._compressor.replan(state):
            # What cannot be quantized would not fit.
            self.store.release_view(state.view)
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

    def view_units(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> int:
        """Net units that `make_view` would take; negative when it frees some."""
        plan = self._compressor.plan_of(self.states[req.kv.req_pool_idx], len(slots))
        return self.store.view_units_needed(slots, plan, shared)

    def make_view(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> None:
        """Privatize; the room must be there (`view_units`)."""
        self._compressor.make_view(self.states[req.kv.req_pool_idx], slots, shared)

    def tighten(self, req: Any) -> None:
        """Plan the request's view again if it has outgrown its budget by more than the slack."""
        state = self.states.get(req.kv.req_pool_idx)
        if state is None or state.view is None:
            return
        if self._compressor.excess_bytes(state, self.config.slack) > 0:
            self._compressor.replan(state)

    def tighten_views(self, num_units: int) -> None:
        """Take views down to their budgets until ``num_units`` more units are free.

        Those that are furthest past theirs come first, so that as few as possible change.
        """
        enough = self.store.free_units + num_units
        excess = [
            (self._compressor.excess_bytes(state, slack=0), index)
            for index, state in self.states.items()
            if state.view is not None
        ]
        for bytes_over, index in sorted(excess, reverse=True):
            if self.store.free_units >= enough or bytes_over <= 0:
                return
            tightened = self._compressor.replan(self.states[index])
            self.totals.tightened_under_pressure += tightened

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

    def tokens_to_reserve(self, req: Any, clipped: float) -> float:
        """New tokens that admission must count on.

        SGLang passes less than are left, ``clipped``, since most texts end early, and throws out
        who it was wrong about; that is right for those only that could come back.
        """
        remaining = max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)
        return clipped if self.comes_back(req, remaining) else remaining

    def take_room_freed(self) -> bool:
        """Whether views were made or tightened since this was last asked."""
        freed, self._compressor.room_freed = self._compressor.room_freed, False
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


def _remaining_tokens(req: Any) -> int:
    return max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)
