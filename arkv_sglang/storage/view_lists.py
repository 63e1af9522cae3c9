"""The flat tensors that hold the rows of all request views."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from arkv_sglang.core import NO_ROW, row_tier
from arkv_sglang.storage.views import MAX_COUNT, DecodeIndex, RequestView, ViewState

_LISTS = ("rows", "positions", "mean", "spread", "count")


class ViewLists:
    """All views in flat [L, M] tensors; each owns one segment of columns, the same in every layer.

    Outside of a view's width, ``rows`` is ``NO_ROW`` and statistics are zero, so that an appended
    row starts clean and a scan over ``rows`` meets live rows only. Segments live on the host. When
    no gap fits, the lists are laid out anew: in place while there is room, else a sixteenth larger.
    """

    def __init__(
        self,
        num_layers: int,
        device: torch.device | str,
        first_columns: int = 256,
        reserve: int = 16,
    ) -> None:
        """``reserve``: columns that a segment has to spare, beside a 32nd of its width."""
        self._num_layers = num_layers
        self._first_columns = first_columns
        self._reserve = reserve
        self._device = device
        self.live: list[RequestView] = []
        self.reset()

    def reset(self) -> None:
        """No views, small lists again."""
        for view in self.live:
            view.live = False
        self.live = []
        self.rows = self._new(self._first_columns, torch.int32, NO_ROW)
        self.positions = self._new(self._first_columns, torch.int32)
        self.mean = self._new(self._first_columns, torch.float32)
        # Population variance: it needs no case for the first observation. ``state`` corrects it.
        self.spread = self._new(self._first_columns, torch.float32)
        self.count = self._new(self._first_columns, torch.int16)

    def _new(self, columns: int, dtype: torch.dtype, fill: int = 0) -> torch.Tensor:
        shape = (self._num_layers, columns)
        return torch.full(shape, fill, dtype=dtype, device=self._device)

    @property
    def columns(self) -> int:
        return self.rows.shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> list[torch.Tensor]:
        return [getattr(self, name) for name in _LISTS]

    # Segments

    def add(self, width: int) -> RequestView:
        """An empty view with room for ``width`` columns and a reserve."""
        capacity = self._with_reserve(width)
        view = RequestView(self._find_gap(capacity), capacity)
        insort(self.live, view, key=lambda v: v.start)
        return view

    def remove(self, view: RequestView) -> None:
        """Forget a view. Its rows are the caller's to free."""
        self._blank(view.start, view.start + view.width)
        self.live.remove(view)
        view.live = False

    def make_room(self, views: Iterable[RequestView], columns: int = 1) -> None:
        """Room for ``columns`` more columns in each of ``views``; they may move."""
        for view in views:
            if view.width + columns > view.capacity:
                self._grow(view, view.width + columns)

    def _grow(self, view: RequestView, width: int) -> None:
        capacity = self._with_reserve(width)
        after = [v.start for v in self.live if v.start > view.start]
        if view.start + capacity <= min(after, default=self.columns):
            view.capacity = capacity
            return
        start = self._find_gap(capacity)
        old, new = _span(view.start, view.width), _span(start, view.width)
        for tensor in self._tensors():
            tensor[:, new] = tensor[:, old]
        self._blank(old.start, old.stop)
        view.start, view.capacity = start, capacity
        self.live.sort(key=lambda v: v.start)

    def _with_reserve(self, width: int) -> int:
        return width + self._reserve + width // 32

    def _find_gap(self, capacity: int) -> int:
        end = 0
        for view in self.live:
            if view.start - end >= capacity:
                return end
            end = view.start + view.capacity
        if self.columns - end >= capacity:
            return end
        taken = sum(view.capacity for view in self.live)
        needed = taken + capacity
        self._lay_out(self.columns if needed <= self.columns else needed + needed // 16)
        return taken

    def _lay_out(self, columns: int) -> None:
        """Pack all segments to the left of lists of ``columns`` columns."""
        starts, widths = [v.start for v in self.live], [v.width for v in self.live]
        packed = _sums_before([v.capacity for v in self.live])
        for view, start in zip(self.live, packed, strict=True):
            view.start = start
        source = ragged_arange(starts, widths, self._device)
        target = ragged_arange(packed, widths, self._device)
        # One list at a time: the peak is one extra list, not all of them twice.
        for name in _LISTS:
            old: torch.Tensor = getattr(self, name)
            new = self._new(columns, old.dtype, NO_ROW if name == "rows" else 0)
            new[:, target] = old[:, source]
            setattr(self, name, new)

    def _blank(self, start: int, stop: int) -> None:
        self.rows[:, start:stop] = NO_ROW
        for tensor in (self.mean, self.spread, self.count):
            tensor[:, start:stop] = 0

    # Contents

    def span(self, view: RequestView) -> torch.Tensor:
        """The view's row codes, int32 [L, width], in place."""
        return self.rows[:, _span(view.start, view.width)]

    def state(self, view: RequestView) -> ViewState:
        """Copy of the view's rows and statistics."""
        span = _span(view.start, view.width)
        rows = self.rows[:, span].clone()
        hole = rows < 0
        count = self.count[:, span].masked_fill(hole, 0)
        n = count.float()
        unbiased = self.spread[:, span] * (n / (n - 1).clamp_min(1))
        return ViewState(
            rows=rows,
            tiers=row_tier(rows),
            positions=self.positions[:, span].long().masked_fill_(hole, 0),
            mean=self.mean[:, span].masked_fill(hole, 0),
            variance=unbiased.masked_fill_(hole, 0),
            num_observations=count,
        )

    def fill(self, view: RequestView, width: int, content: ViewState) -> None:
        """Replace the view's columns by the rows of ``content`` that exist, packed to ``width``."""
        rows = content.rows
        kept = rows >= 0
        column = torch.where(kept, kept.cumsum(dim=1) - 1, width)
        order = rows.new_zeros(rows.shape[0], width + 1, dtype=torch.int64)
        order.scatter_(1, column, torch.arange(rows.shape[1], device=rows.device).expand_as(rows))
        order = order[:, :width]
        hole = torch.arange(width, device=rows.device) >= kept.sum(dim=1, keepdim=True)
        n = content.num_observations.float().clamp_min(1)
        span = _span(view.start, width)
        self.rows[:, span] = rows.gather(1, order).masked_fill_(hole, NO_ROW)
        self.positions[:, span] = content.positions.gather(1, order).int()
        self.mean[:, span] = content.mean.gather(1, order)
        self.spread[:, span] = (content.variance * ((n - 1) / n)).gather(1, order)
        self.count[:, span] = content.num_observations.gather(1, order)
        self._blank(view.start + width, view.start + max(width, view.width))
        view.width = width

    def append(
        self, views: Sequence[RequestView], positions: Sequence[int], rows: torch.Tensor
    ) -> None:
        """One more column per view: ``rows`` int32 [L, B]. Call ``make_room`` first."""
        where = [[v.start + v.width for v in views], list(positions)]
        columns, at = torch.tensor(where, dtype=torch.int64).to(self._device)
        self.rows.index_copy_(1, columns, rows)
        self.positions[:, columns] = at.int()
        for view in views:
            view.width += 1

    def decode_index(self, views: Sequence[RequestView]) -> DecodeIndex:
        """Columns of all views, one after another."""
        widths = [v.width for v in views]
        indptr = torch.tensor([0, *accumulate(widths)], dtype=torch.int64).to(self._device)
        index = ragged_arange([v.start for v in views], widths, self._device)
        return DecodeIndex(indptr, widths, index)

    def observe(self, layer: int, index: torch.Tensor, probs: torch.Tensor) -> None:
        """Add ``probs`` fp32 [total] to the running mean and spread of the columns ``index``."""
        mean, spread, count = self.mean[layer], self.spread[layer], self.count[layer]
        n = count.index_select(0, index).clamp_max_(MAX_COUNT - 1).add_(1)
        share = n.float().reciprocal_()
        old_mean = mean.index_select(0, index)
        delta = probs - old_mean
        new_spread = spread.index_select(0, index).addcmul_(delta.square(), share).mul_(1 - share)
        mean.scatter_(0, index, old_mean.addcmul_(delta, share))
        spread.scatter_(0, index, new_spread)
        count.scatter_(0, index, n)


def ragged_arange(
    starts: Sequence[int], lengths: Sequence[int], device: torch.device | str
) -> torch.Tensor:
    """int64: ``starts[i] .. starts[i] + lengths[i]`` for each i, one after another."""
    offsets = [start - before for start, before in zip(starts, _sums_before(lengths), strict=True)]
    both = torch.tensor([offsets, list(lengths)], dtype=torch.int64).to(device)
    total = sum(lengths)
    base = torch.repeat_interleave(both[0], both[1], output_size=total)
    return base.add_(torch.arange(total, device=device))


def _sums_before(lengths: Iterable[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def _span(start: int, width: int) -> slice:
    return slice(start, start + width)
