"""Row lists of running requests: what each attends to in place of its prompt's slots."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from arkv_sglang.core import row_tier
from arkv_sglang.storage.tiering import RowCounts, no_rows

MAX_COUNT = torch.iinfo(torch.int16).max
"""Observations counted per row; from there on the statistics are a moving average over so many."""


@dataclass(eq=False)
class RequestView:
    """One request's rows: columns ``start .. start + width`` of the view lists, in every layer.

    A layer with fewer rows than ``width`` has ``NO_ROW`` in the rest. The numbers are host integers
    and always current; the store alone changes them. ``num_rows`` counts stored tiers over all
    layers, ``rows_evicted`` the candidates that plans dropped so far. ``live`` ends with
    ``release_view`` or ``clear``.
    """

    start: int
    capacity: int
    width: int = 0
    num_rows: RowCounts = field(default_factory=no_rows)
    rows_evicted: int = 0
    live: bool = True


@dataclass(frozen=True)
class DecodeIndex:
    """Where the views of one batch lie, for all layers. Valid until the store changes any view.

    ``kv_indptr`` int64 [B + 1] and ``kv_lens`` (host) are the same for every layer; ``index``
    int64 [total] are columns of the view lists, request after request.
    """

    kv_indptr: torch.Tensor
    kv_lens: list[int]
    index: torch.Tensor


@dataclass(frozen=True)
class ViewState:
    """A copy of one view for planning, [L, N] with N its width; ``NO_ROW``/``EVICTED``/0 where
    ragged.

    ``rows`` int32 row codes, ``tiers`` int8, ``positions`` int64, ``mean`` and ``variance`` fp32 of
    the attention that the row received, ``num_observations`` int16.
    """

    rows: torch.Tensor
    tiers: torch.Tensor
    positions: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    num_observations: torch.Tensor

    @classmethod
    def of(
        cls,
        rows: torch.Tensor,
        positions: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        num_queries: int | torch.Tensor,
    ) -> ViewState:
        """State of fresh rows [L, n] at ``positions`` [n], observed ``num_queries`` times: one
        number, or int64 [n]."""
        return cls(
            rows=rows,
            tiers=row_tier(rows),
            positions=positions.expand_as(rows),
            mean=mean,
            variance=variance,
            num_observations=torch.as_tensor(num_queries, device=rows.device)
            .clamp_max(MAX_COUNT)
            .to(torch.int16)
            .expand_as(rows),
        )
