"""The engine's pool, allocator and tree on the CPU, without an engine: for replays and tests."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey

from arkv_sglang.cache.heat import HeatStrategy
from arkv_sglang.cache.radix import ArkvRadixCache
from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import Geometry
from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.pool import ArkvKVPool


def standalone_pool(
    config: ArkvConfig, geometry: Geometry, *, num_slots: int, capacity: int
) -> ArkvKVPool:
    """A pool whose arena holds ``capacity`` bf16 tokens."""
    return ArkvKVPool(
        num_slots,
        num_units=capacity * geometry.token_units,
        config=config,
        page_size=1,
        dtype=torch.bfloat16,
        head_num=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        layer_num=geometry.num_layers,
        device="cpu",
        enable_memory_saver=False,
    )


class StandaloneParts:
    """All that holds KV, around ``pool`` and its controller.

    ``num_requests`` of up to ``context_len`` tokens may run at once. ``eviction_policy``: one of
    SGLang's; None is heat.
    """

    def __init__(
        self,
        pool: ArkvKVPool,
        *,
        num_requests: int,
        context_len: int,
        eviction_policy: str | None = None,
    ) -> None:
        self.store, self.controller = pool.store, pool.controller
        self.allocator = ArkvAllocator(pool.size, torch.bfloat16, "cpu", pool, need_sort=False)
        self.rows = ReqToTokenPool(num_requests, context_len, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
            eviction_policy=eviction_policy or "lru",
        )
        self.tree = ArkvRadixCache(params, self.controller)
        if eviction_policy is None:
            self.tree.eviction_strategy = HeatStrategy()

    def match(self, req: Any, recomputed: int) -> int:
        """Find and lock the request's prompt, but for its last ``recomputed`` tokens, in the tree.

        The request gets a row of slots; returns how many tokens of it are filled.
        """
        ids = req.full_untruncated_fill_ids
        key = RadixKey(ids[: len(ids) - recomputed])
        found = self.tree.match_prefix(MatchPrefixParams(key=key))
        matched = int(found.device_prefix_len)
        req.last_node = found.last_device_node
        req.lock = self.tree.lock(req.last_node)
        self.rows.alloc([req])
        path = self.tree.path_device_indices(req.last_node)
        self.rows.write((req.kv.req_pool_idx, slice(0, matched)), path)
        req.kv.cache_protected_len = matched
        return matched

    def bind(self, req: Any, num_tokens: int) -> torch.Tensor:
        """Slots with rows for the request's next ``num_tokens``, int64; raises `OutOfUnits`."""
        slots = self.allocator.alloc(num_tokens)
        assert slots is not None, "slots must never run out before units"
        self.store.bind_slots(slots)
        start = req.kv.cache_protected_len
        self.rows.write((req.kv.req_pool_idx, slice(start, start + num_tokens)), slots)
        return slots

    def release(self, req: Any) -> None:
        """Let go of the request's lock, view and row, once its slots are the tree's."""
        if req.lock is not None:
            self.tree.unlock(req.lock)
        self.tree.on_release(req, checkpointed=True)
        self.rows.free(req)
