"""Tree, store, allocator and controller of an engine, with random numbers for a model."""

from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey

from arkv_sglang.cache.heat import HeatStrategy
from arkv_sglang.cache.radix import ArkvRadixCache
from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry
from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.pool import ArkvKVPool

GEOMETRY = Geometry(num_layers=2, num_kv_heads=1, head_dim=16)
NUM_SLOTS, CONTEXT = 8000, 4000


class Request:
    """The fields of SGLang's `Req` that tree and controller read."""

    def __init__(self, ids: Any, new: int = 50) -> None:
        self.origin_input_ids = self.full_untruncated_fill_ids = array("q", ids)
        self.output_ids: list[int] = []
        self.sampling_params = SimpleNamespace(max_new_tokens=new)
        self.kv = ReqKvInfo()
        self.extra_key = self.cache_salt = None
        self.lock = self.last_node = self.to_finish = None
        self.priority = 0
        self.ended = False

    def finished(self) -> bool:
        return self.ended

    @property
    def row(self) -> int:
        return self.kv.req_pool_idx


class RealParts:
    """An arena of ``capacity`` bf16 tokens and the engine's own steps on it."""

    def __init__(self, policy: str, config: dict[str, Any], capacity: int) -> None:
        pool = ArkvKVPool(
            NUM_SLOTS,
            num_units=capacity * GEOMETRY.token_units,
            config=load_config(policy, config),
            page_size=1,
            dtype=torch.bfloat16,
            head_num=GEOMETRY.num_kv_heads,
            head_dim=GEOMETRY.head_dim,
            layer_num=GEOMETRY.num_layers,
            device="cpu",
            enable_memory_saver=False,
        )
        self.store, self.controller = pool.store, pool.controller
        self.controller.scale = 0.25
        self.allocator = ArkvAllocator(NUM_SLOTS, torch.bfloat16, "cpu", pool, need_sort=False)
        self.rows = ReqToTokenPool(32, CONTEXT, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=1,
        )
        self.tree = ArkvRadixCache(params, self.controller)
        self.tree.eviction_strategy = HeatStrategy()
        self.random = torch.Generator().manual_seed(0)

    @property
    def free_tokens(self) -> int:
        return self.store.free_units // GEOMETRY.token_units

    def cached(self, ids: Any) -> int:
        """Tokens of the text that the tree has."""
        key = RadixKey(array("q", ids))
        return int(self.tree.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)

    def prefill(self, *reqs: Request, nan: bool = False) -> None:
        """All in one pass, as SGLang does: match and lock, allocate, forward, checkpoint."""
        for req in reqs:
            self._match(req)
        for req in reqs:
            self._extend(req, nan)
        for req in reqs:
            self.tree.checkpoint(req, up_to=req.kv.kv_committed_len)

    def _match(self, req: Request) -> None:
        ids = req.full_untruncated_fill_ids
        key = RadixKey(ids[: len(ids) - self.controller.config.window])
        found = self.tree.match_prefix(MatchPrefixParams(key=key))
        req.last_node = found.last_device_node
        req.lock = self.tree.lock(req.last_node)
        self.rows.alloc([req])
        matched = found.device_prefix_len
        path = self.tree.path_device_indices(req.last_node)
        self.rows.write((req.row, slice(0, matched)), path)
        req.kv.cache_protected_len = matched

    def _extend(self, req: Request, nan: bool) -> None:
        start, end = req.kv.cache_protected_len, len(req.full_untruncated_fill_ids)
        self.allocator.evict_to_free_tokens(self.tree, end - start)
        slots = self.allocator.alloc(end - start)
        self.store.bind_slots(slots)
        self.rows.write((req.row, slice(start, end)), slots)
        state = self.controller.state(req.row)
        for layer in range(GEOMETRY.num_layers):
            k, v = (self._numbers(end - start, 1) for _ in "kv")
            if nan:
                v.fill_(torch.nan)
            self.store.write(layer, self.store.slot_rows(layer, slots), k, v)
            window = min(end - start, self.controller.config.window)
            state.queries.append(layer, self._numbers(window, 2))
        req.kv.kv_committed_len = req.kv.kv_allocated_len = end

    def _numbers(self, tokens: int, heads: int) -> torch.Tensor:
        shape = (tokens, heads, GEOMETRY.head_dim)
        return torch.randn(shape, generator=self.random).bfloat16()

    def decode(self, reqs: list[Request]) -> bool:
        """One token for each; False where some must be thrown out first."""
        if not self.allocator.check_decode_capacity(
            num_tokens=len(reqs), tree_cache=self.tree, requests=reqs
        ):
            return False
        for req in reqs:
            slot = self.allocator.alloc(1)
            end = req.kv.kv_committed_len
            self.rows.write((req.row, slice(end, end + 1)), slot)
            view = self.controller.view(req.row)
            if view is None:
                self.store.bind_slots(slot)
            else:
                self.store.append_rows([view], [end])
            req.kv.kv_committed_len = req.kv.kv_allocated_len = end + 1
        return True

    def finish(self, req: Request) -> None:
        """As SGLang does for a request of one token: its prompt goes into the tree."""
        req.ended = True
        self.tree.checkpoint(req, up_to=req.kv.kv_committed_len)
        if req.lock is not None:
            self.tree.unlock(req.lock)
        self.tree.on_release(req, checkpointed=True)
        self.rows.free(req)

    def ask(self, ids: Any) -> None:
        """One request of one token."""
        req = Request(ids, new=1)
        self._match(req)
        self._extend(req, nan=False)
        self.finish(req)
