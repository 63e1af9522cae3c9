"""Tree, store, allocator and controller of an engine, with random numbers for a model."""

from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry
from arkv_sglang.engine.standalone import StandaloneParts, standalone_pool

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


class RealParts(StandaloneParts):
    """An arena of ``capacity`` bf16 tokens and the engine's own steps on it."""

    def __init__(self, policy: str, config: dict[str, Any], capacity: int) -> None:
        pool = standalone_pool(
            load_config(policy, config), GEOMETRY, num_slots=NUM_SLOTS, capacity=capacity
        )
        pool.controller.scale = 0.25
        super().__init__(pool, num_requests=32, context_len=CONTEXT)
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
            self.match(req, recomputed=self.controller.config.window)
        for req in reqs:
            self._extend(req, nan)
        for req in reqs:
            self.tree.checkpoint(req, up_to=req.kv.kv_committed_len)

    def _extend(self, req: Request, nan: bool) -> None:
        start, end = req.kv.cache_protected_len, len(req.full_untruncated_fill_ids)
        self.allocator.evict_to_free_tokens(self.tree, end - start)
        slots = self.bind(req, end - start)
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
        """Its last token was sampled but has no row; what is not a view's goes into the tree."""
        req.ended = True
        req.output_ids.append(0)
        req.full_untruncated_fill_ids = req.full_untruncated_fill_ids + array("q", [0])
        if not self.controller.has_view(req):
            self.tree.checkpoint(req, up_to=req.kv.kv_committed_len)
        self.release(req)

    def ask(self, ids: Any) -> None:
        """One request of one token."""
        req = Request(ids, new=1)
        self.match(req, recomputed=self.controller.config.window)
        self._extend(req, nan=False)
        self.finish(req)
