"""The radix tree with tiers: publishes complete nodes, demotes before it evicts, privatizes.

Who owns a prompt's rows, by position, after `ArkvRadixCache.checkpoint` at the end of a prompt:

    [0, prompt)        tree; the request has let go of its lock and of the slots
    view               the request's own units, in place of those slots
    [prompt, ...)      the request's slots, without rows: decoded rows are in the view
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.radix_cache import RadixCache, TreeNode

from arkv_sglang.cache.heat import heat_of
from arkv_sglang.cache.heat_memory import HeatMemory
from arkv_sglang.cache.tiers import node_units, quantized_layers, rows_by_tier
from arkv_sglang.core import ROW_UNITS, STORED_TIERS, Tier
from arkv_sglang.kernels.api import NaNError
from arkv_sglang.storage.store import KVStore


class RequestController(Protocol):
    """What the tree asks of the engine's controller."""

    store: KVStore
    demotes: bool
    privatizes_at_once: bool
    promised_tokens: float

    def layers_by_tolerance(self) -> Sequence[int]: ...
    def compresses_chunks(self, req: Any) -> bool: ...
    def late_by_a_chunk(self, req: Any) -> bool: ...
    def compress_chunk(self, req: Any, slots: torch.Tensor) -> None: ...
    def has_view(self, req: Any) -> bool: ...
    def finish_prompt(self, req: Any, slots: torch.Tensor) -> torch.Tensor | None: ...
    def waits(self, req: Any) -> bool: ...
    def waiting(self) -> list[Any]: ...
    def most_view_units(self, num_tokens: int) -> int: ...
    def view_units(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> int: ...
    def make_view(self, req: Any, slots: torch.Tensor, shared: torch.Tensor) -> None: ...
    def release(self, req: Any) -> None: ...


class ArkvRadixCache(RadixCache):
    """`RadixCache` of nodes with rows of mixed tiers. Counts slots for SGLang, units for itself."""

    def __init__(self, params: Any, controller: RequestController) -> None:
        self.controller = controller
        self.store = controller.store
        self.nodes_demoted_total = 0
        self.tokens_evicted_total = 0
        self.views_under_pressure_total = 0
        self.views_taken_over_total = 0
        self.clock: Callable[[], float] = time.monotonic
        super().__init__(params)

    def reset(self) -> None:
        self.heat_memory = HeatMemory()
        super().reset()

    # -- life of a request --

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        if self.controller.compresses_chunks(req):
            # Its prefix is no longer complete, so nothing of it is published.
            if not req.finished():
                self.controller.compress_chunk(req, self._row(req, up_to))
            return
        # What is decoded on a compressed context is nobody else's prefix.
        if self.controller.has_view(req):
            return
        super().checkpoint(req, up_to=up_to)
        # An answer of one token ends with its prompt.
        prompt = req.origin_input_ids if req.finished() else req.full_untruncated_fill_ids
        if up_to < len(prompt):
            return
        slots = self._row(req, up_to)
        attention = self.controller.finish_prompt(req, slots)
        if attention is not None:
            self.heat_memory.warm(req, attention, self.clock())
        if req.finished():
            return
        if self.controller.privatizes_at_once and self.controller.waits(req):
            # Under overlap scheduling one token has been decoded by now, unlike in ``up_to``.
            self.privatize(req, req.kv.kv_committed_len)

    def finish_chunks(self, req: Any) -> None:
        """Compress the last chunk of a prompt larger than the arena before it is decoded on.

        Under overlap scheduling the checkpoint comes a step too late for that.
        """
        if self.controller.late_by_a_chunk(req):
            self.controller.compress_chunk(req, self._row(req, req.extend_end))

    def privatize(self, req: Any, num_tokens: int) -> bool:
        """Build the request's view from its first ``num_tokens`` slots; False when units are short.

        Copies while there is room, which nodes make that are colder than its own leaves; else takes
        over the units of nodes that no other request uses, and the tree forgets them: leaves first,
        then the whole path that only this request holds, at the cost of what hangs from it
        unlocked. Room that was promised to others for their growth is never taken.
        """
        slots = self._row(req, num_tokens)
        own_from, node = req.kv.cache_protected_len, req.last_node
        leaves = self._sole_leaves(node)
        colder_than = max(map(self.eviction_strategy.get_priority, leaves), default=None)
        options: list[tuple[list[TreeNode], Any]] = [([], colder_than)]
        for below in (leaves, self._sole_path(node)):
            if len(below) > len(options[-1][0]):
                options.append((below, None))
        for taken, limit in options:
            start = own_from - sum(len(node.value) for node in taken)
            shared = torch.arange(num_tokens, device=slots.device) < start
            if self._make_room(self.controller.view_units(req, slots, shared), limit):
                break
        else:
            return False
        self.controller.make_view(req, slots, shared)
        self._let_go(req)
        self._forget(taken)
        self.views_taken_over_total += bool(taken)
        self.req_to_token_pool.write((req.kv.req_pool_idx, slice(0, own_from)), 0)
        return True

    def _let_go(self, req: Any) -> None:
        self.unlock(req.lock)
        req.lock = None
        req.last_node = self.root_node

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        self.controller.release(req)

    def _row(self, req: Any, num_tokens: int) -> torch.Tensor:
        return self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :num_tokens].long()

    # -- reclaim --

    def reclaim(self, num_units: int, limit: Any = None) -> int:
        """Give back at least ``num_units`` units if unlocked nodes hold them; returns units freed.

        Demotes the coldest nodes first, each no further than needed; evicts leaves only once
        nothing is left to demote. ``limit``: an eviction priority; only colder nodes are touched.
        """
        freed = 0
        if self.controller.demotes and num_units > 0:
            layers = self.controller.layers_by_tolerance()
            for node in sorted(self._colder(limit), key=self.eviction_strategy.get_priority):
                freed += self._demote(node, layers, num_units - freed)
                if freed >= num_units:
                    return freed
        while freed < num_units and self._evictable(limit):
            before = self.store.free_units
            # Never more than is short: a token gives back at most its bf16 units.
            tokens = -(-(num_units - freed) // self.store.geometry.token_units)
            if limit is not None:
                # Only the coldest leaf, since the next may be as hot as the limit.
                tokens = 1
            self.evict(EvictParams(num_tokens=tokens))
            freed += self.store.free_units - before
        return freed

    def _evictable(self, limit: Any) -> bool:
        if limit is None:
            return self.evictable_size_ > 0
        priorities = map(self.eviction_strategy.get_priority, self.evictable_leaves)
        return min(priorities, default=limit) < limit

    def reclaimable_units(self, limit: Any = None) -> int:
        """Units that evicting every unlocked node would free; ``limit`` as for `reclaim`."""
        return sum(map(self._units, self._colder(limit)))

    def privatize_waiting(self, num_units: int) -> None:
        """Compress requests that wait with it until ``num_units`` more units are free.

        Those that give most come first, so that as few as possible are compressed.
        """
        enough = self.store.free_units + num_units
        by_gain = sorted(self.controller.waiting(), key=self.compressible_units, reverse=True)
        for req in by_gain:
            if self.store.free_units >= enough:
                return
            if self.privatize(req, req.kv.kv_committed_len):
                self.views_under_pressure_total += 1
                self.reclaim(enough - self.store.free_units)

    def compressible_units(self, req: Any) -> int:
        """Units that compressing a waiting request gives at least, whatever the others do."""
        num_tokens = req.kv.kv_committed_len
        unpublished = num_tokens - req.kv.cache_protected_len
        held = unpublished * self.store.geometry.token_units
        held += sum(map(self._units, self._sole_path(req.last_node)))
        return max(held - self.controller.most_view_units(num_tokens), 0)

    def evict(self, params: EvictParams) -> EvictResult:
        result = super().evict(params)
        self.tokens_evicted_total += result.num_tokens_evicted
        return result

    def bytes_by_tier(self) -> dict[Tier, int]:
        """Arena bytes of all nodes, locked or not."""
        found, geometry = dict.fromkeys(STORED_TIERS, 0), self.store.geometry
        for node in self._nodes():
            for tier, rows in rows_by_tier(node, geometry.num_layers).items():
                found[tier] += rows * ROW_UNITS[tier] * geometry.unit_bytes
        return found

    def _units(self, node: TreeNode) -> int:
        return node_units(node, self.store.geometry.num_layers)

    def _make_room(self, num_units: int, limit: Any) -> bool:
        """False, and nothing evicted, where that would not give enough beside what is promised."""
        if num_units <= 0:
            return True
        promised = int(self.controller.promised_tokens * self.store.geometry.token_units)
        short = num_units - self.store.free_units
        if short + promised > self.reclaimable_units(limit):
            return False
        return short <= 0 or self.reclaim(short, limit) >= short

    def _demote(self, node: TreeNode, layers: Sequence[int], num_units: int) -> int:
        """Quantize the node in as many layers, the first of ``layers`` first, as free the units."""
        before = quantized_layers(node)
        left = [layer for layer in layers if layer not in before]
        chosen = left[: -(-num_units // len(node.value))]
        if not chosen:
            return 0
        try:
            freed = self.store.demote_slots(node.value, chosen)
        except NaNError:
            # Eviction gets rid of it.
            return 0
        node.quantized_layers = before.union(chosen)
        self.nodes_demoted_total += not before
        return freed

    def _nodes(self) -> Iterator[TreeNode]:
        stack = list(self.root_node.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _colder(self, limit: Any) -> list[TreeNode]:
        """Unlocked nodes that can be evicted without one of priority ``limit`` or more."""
        unlocked = [node for node in self._nodes() if node.lock_ref == 0]
        if limit is None:
            return unlocked
        kept: set[TreeNode] = set()
        for node in unlocked:
            if self.eviction_strategy.get_priority(node) >= limit:
                while node is not self.root_node and node not in kept:
                    kept.add(node)
                    node = node.parent
        return [node for node in unlocked if node not in kept]

    def _sole_path(self, node: TreeNode) -> list[TreeNode]:
        """Nodes up from ``node`` that only one request locks: what else hangs there is unlocked."""
        path: list[TreeNode] = []
        while node is not self.root_node and node.lock_ref == 1:
            path.append(node)
            node = node.parent
        return path

    def _sole_leaves(self, node: TreeNode) -> list[TreeNode]:
        """The part of the path from which nothing else hangs."""
        below: list[TreeNode] = []
        for each in self._sole_path(node):
            if any(child not in below for child in each.children.values()):
                break
            below.append(each)
        return below

    def _forget(self, nodes: list[TreeNode]) -> None:
        """Remove unlocked ``nodes``, children before parents, and what else hangs from them."""
        for node in nodes:
            self._forget(list(node.children.values()))
            self.tokens_evicted_total += len(node.value)
            self.token_to_kv_pool_allocator.free_segment(node.value, start_pos=0)
            self._delete_leaf(node)
            self.kv_events.record_remove(node)

    def _split_node(self, key: Any, child: TreeNode, split_len: int) -> TreeNode:
        parent: TreeNode = super()._split_node(key, child, split_len)
        parent.heat = heat_of(child).copy()
        parent.quantized_layers = quantized_layers(child)
        return parent
