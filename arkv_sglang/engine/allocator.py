"""SGLang's slot allocator, with physical room counted in units beside it.

Slots stay exactly as SGLang counts them. Units are what is scarce: they are freed at once, while
freed slots may wait for SGLang's deferred groups.
"""

from __future__ import annotations

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

    def room_tokens(self, tree_cache: Any) -> float:
        """bf16 tokens that can be had: the lesser of slots and units, with what can be evicted."""
        slots = self.available_size() + tree_cache.evictable_size()
        units = self.store.free_units + tree_cache.reclaimable_units()
        return min(slots, units / self.token_units)

    def create_prefill_budget(
        self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0
    ) -> ArkvPrefillBudget:
        return ArkvPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> None:
        super().evict_to_free_tokens(tree_cache, num_tokens)
        short = num_tokens * self.token_units - self.store.free_units
        if short > 0:
            tree_cache.reclaim(short)

    def check_decode_capacity(
        self,
        *,
        num_tokens: int,
        tree_cache: Any,
        requests: Any = None,
        spec_algorithm: Any = None,
    ) -> bool:
        """One more row per layer for each request, after waiting and outgrown views had theirs."""
        for req in requests or ():
            if self.controller.wants_view(req):
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
        capacity = self.capacity_tokens
        if input_tokens >= capacity:
            return None
        if not self.controller.compresses(input_tokens, max_new_tokens):
            return max(0, min(max_new_tokens, capacity - input_tokens - 1))
        return self._fitting_generation(input_tokens, max_new_tokens, capacity)

    def _fitting_generation(self, input_tokens: int, max_new_tokens: int, capacity: int) -> int:
        fits, too_many = 0, max_new_tokens + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.controller.final_tokens(input_tokens, middle) < capacity:
                fits = middle
            else:
                too_many = middle
        return fits

    # -- integrity --

    def verify_byte_accounting(self) -> list[str]:
        return self.store.check_integrity()

    def debug_print(self) -> str:
        return f"units: {self.store.free_units} free of {self.store.num_units}"
