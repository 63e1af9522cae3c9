"""Prompts larger than the arena: their chunks join a view in the making, one after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arkv_sglang import policy
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import row_tier
from arkv_sglang.engine.prompt import PromptScores, score_rows
from arkv_sglang.engine.request_state import RequestState
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import MAX_COUNT, ViewState


def take_in_chunk(
    config: ArkvConfig, store: KVStore, state: RequestState, slots: torch.Tensor, scale: float
) -> bool:
    """Take what was prefilled since the last time into the request's view.

    ``slots``: int64 [T], of the prompt so far. False where the model gave NaN: then the view is as
    it was, and the chunk's rows are freed.
    """
    view = state.view = state.view or store.add_view()
    chunk = slots[state.num_compressed :]
    positions = torch.arange(state.num_compressed, len(slots), device=slots.device)
    state.num_compressed = len(slots)
    now = store.view_state(view)
    rows = torch.cat((now.rows, store.slot_row_table(chunk)), dim=1)
    found = score_rows(config, store, state.queries, rows, scale)
    state.queries.clear()
    if bool(found.attention.isnan().any()):
        store.release_slots(chunk)
        return False
    store.extend_view(view, chunk, _with_chunk(now, rows, positions, found))
    state.scores = found.without_tokens()
    state.record.chunks_compressed += 1
    return True


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
