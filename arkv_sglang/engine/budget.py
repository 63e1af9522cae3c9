"""What one prefill pass may admit, in bf16-token equivalents of the arena."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.prefill_budget import PrefillBudget

if TYPE_CHECKING:
    from arkv_sglang.engine.allocator import ArkvAllocator


class ArkvPrefillBudget(PrefillBudget):
    """SGLang's budget over physical room. A request is charged what it needs at its largest.

    A prompt is bf16 while it is prefilled and its view takes less from then on, so the two are
    never charged together: privatizing takes over the prompt's own units when it must.
    """

    allocator: ArkvAllocator

    def __init__(self, allocator: ArkvAllocator, tree_cache: Any, **kwargs: Any) -> None:
        super().__init__(allocator, tree_cache, **kwargs)
        self.slot_offset: float = self.total_offset
        self._candidate: Any = None
        self._parked = False
        self._controller = allocator.controller
        self._controller.promised_tokens = 0.0

    def look_at(self, req: Any) -> None:
        """``req`` is what the next calls are about, until this is called again."""
        self._candidate = req

    def promise(self, slots: float, growth_tokens: float) -> None:
        """A request may take so many ``slots`` and grow by ``growth_tokens`` (bf16-token
        equivalents), which are charged to ``total_offset`` beside this."""
        self.slot_offset += slots
        self._controller.promised_tokens += growth_tokens

    def _available_and_evictable(self) -> float:
        return self.allocator.room_tokens(self.tree_cache)

    def has_capacity(self) -> bool:
        return not self._parked and super().has_capacity()

    def check_prefill(
        self,
        *,
        extend_input_len: int,
        total_tokens: int,
        max_new_tokens: int,
        input_tokens: int,
        swa_host_hit_length: int,
        chunk_limit: int | None,
        auxiliary_swa_host_hit_length: int = 0,
    ) -> tuple[bool, int | None]:
        if self._parked:
            return False, None
        new_tokens = self._new_tokens(max_new_tokens)
        fits = self._slots_for(extend_input_len + new_tokens) and self.allocator.fits(
            self.remaining_total, input_tokens, new_tokens, extend_input_len
        )
        return (True, chunk_limit) if fits or self._fits_alone(extend_input_len) else (False, None)

    def _fits_alone(self, extend_input_len: int) -> bool:
        """Nobody else is there, and what was taken in on arrival fits if its prompt does.

        Its prefix in the tree is locked for the request itself and so counts as no room, but its
        view may take that over.
        """
        alone = not (self.total_offset or self._controller.states)
        return alone and extend_input_len + self.page_size < self.remaining_total

    def can_allocate_prefill(self, **kwargs: Any) -> bool:
        return not self._parked and super().can_allocate_prefill(**kwargs)

    def available_chunk_tokens(self, chunk_limit: int) -> int | None:
        """Room for the next chunk of a prompt; None parks it, and then nobody else is admitted.

        SGLang counts a parked request's next chunk as a middle one if another is admitted.
        """
        available = min(chunk_limit, int(self.remaining_total))
        if available > 0:
            return available
        self._parked = True
        return None

    def reserve(
        self,
        extend_input_len: int,
        max_new_tokens: int,
        *,
        extra_tokens: int = 0,
        chunk_limit: int | None = None,
        is_chunked_continuation: bool = False,
    ) -> None:
        req = self._candidate
        # Of a prompt that is cut into chunks SGLang passes none until the last.
        new_tokens = self._new_tokens(max_new_tokens) if max_new_tokens else 0
        input_tokens = extend_input_len if req is None else len(req.full_untruncated_fill_ids)
        # What the view can take over: of a prompt in chunks, those before, too.
        own = input_tokens if is_chunked_continuation else extend_input_len
        final = self._controller.final_tokens(input_tokens, new_tokens)
        growth = int(min(new_tokens, max(final - own, 0)))
        self.promise(extend_input_len + new_tokens, growth)
        super().reserve(extend_input_len, growth, extra_tokens=extra_tokens)

    def _new_tokens(self, clipped: int) -> int:
        if self._candidate is None:
            return clipped
        return int(self._controller.tokens_to_reserve(self._candidate, clipped))

    def _slots_for(self, num_tokens: int) -> bool:
        slots = self.allocator.available_size() + self.tree_cache.evictable_size()
        return bool(num_tokens + self.page_size < slots - self.slot_offset)
