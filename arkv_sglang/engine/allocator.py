"""SGLang's slot allocator, with physical room counted in units beside it.

Slots stay exactly as SGLang counts them. Units are what is scarce: they are freed at once, while
freed slots may wait for SGLang's deferred groups.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

from arkv_sglang.engine.budget import ArkvPrefillBudget
from arkv_sglang.engine.pool import ArkvKVPool


class ArkvAllocator(TokenToKVPoolAllocator):
    """Slots for SGLang's scheduler; ``controller`` and ``store`` for ours."""

    def __init__(
        self, size: int, dtype: torch.dtype, device: str, kvcache: ArkvKVPool, need_sort: bool
    ) -> None:
        self.controller = kvcache.controller
        self.store = kvcache.store
        super().__init__(size, dtype, device, kvcache, need_sort)

    def clear(self) -> None:
        super().clear()
        self.store.clear()
        self.controller.clear()

    def free(self, free_index: torch.Tensor) -> None:
        if free_index.numel():
            self.store.release_slots(free_index)
        super().free(free_index)

    # -- room --

    @property
    def token_units(self) -> int:
        return self.store.geometry.token_units

    @property
    def capacity_tokens(self) -> int:
        """bf16 tokens that the whole arena holds."""
        return self.store.num_units // self.token_units

    @property
    def max_text_tokens(self) -> int:
        """Of the longest prompt and answer that the engine serves, its context length aside."""
        return self.controller.max_text_tokens(self.store.num_slots)

    def fits(
        self, room_tokens: float, input_tokens: int, max_new_tokens: int, extend_tokens: int
    ) -> bool:
        """Asked on arrival of an empty arena, too, so that nothing is taken in that could wait for
        ever."""
        return self.controller.fits(room_tokens, input_tokens, max_new_tokens, extend_tokens)

    def room_tokens(self, tree_cache: Any) -> float:
        """bf16 tokens that can be had: the lesser of slots and units, with what can be evicted and
        what compressing the requests that wait with it would give."""
        slots = self.available_size() + tree_cache.evictable_size()
        units = self.store.free_units + tree_cache.reclaimable_units()
        units += sum(map(tree_cache.compressible_units, self.controller.waiting()))
        return min(slots, units / self.token_units)

    def create_prefill_budget(
        self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0
    ) -> ArkvPrefillBudget:
        return ArkvPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> None:
        """The reclaim ladder (architecture, section 5), each step no further than needed."""
        super().evict_to_free_tokens(tree_cache, num_tokens)
        enough = num_tokens * self.token_units
        for step in (
            tree_cache.reclaim,
            tree_cache.privatize_waiting,
            self.controller.tighten_views,
        ):
            short = enough - self.store.free_units
            if short > 0:
                step(short)

    def check_decode_capacity(
        self,
        *,
        num_tokens: int,
        tree_cache: Any,
        requests: Any = None,
        spec_algorithm: Any = None,
    ) -> bool:
        """One more row per layer for each request, after views that are late, wait or have
        outgrown their budgets had theirs."""
        for req in requests or ():
            tree_cache.finish_chunks(req)
            if self.controller.privatizes_at_once and self.controller.waits(req):
                tree_cache.privatize(req, req.kv.kv_committed_len)
            self.controller.tighten(req)
        self.evict_to_free_tokens(tree_cache, num_tokens)
        enough_units = self.store.free_units >= num_tokens * self.token_units
        return enough_units and self.available_size() >= num_tokens

    def max_new_tokens_for_memory(
        self,
        input_tokens: int,
        max_new_tokens: int,
        *,
        token_capacity: int,
        sliding_window_size: int | None,
        chunk_size: int | None,
    ) -> int | None:
        """Clip generation to what an empty arena holds; None when the prompt cannot fit."""
        room = self.store.num_units / self.token_units
        too_long = bisect_left(
            range(max_new_tokens + 1),
            True,
            key=lambda n: not self.fits(room, input_tokens, n, input_tokens),
        )
        return too_long - 1 if too_long else None

    # -- integrity --

    def verify_byte_accounting(self) -> list[str]:
        return self.store.check_integrity()

    def debug_print(self) -> str:
        return f"units: {self.store.free_units} free of {self.store.num_units}"
