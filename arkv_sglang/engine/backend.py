"""The attention backend `arkv`: rows through the slot table, or through a request's view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from arkv_sglang.engine.controller import Controller
from arkv_sglang.engine.pool import ArkvKVPool
from arkv_sglang.kernels.api import decode_attention, extend_attention, write_rows
from arkv_sglang.storage.store import KVStore
from arkv_sglang.storage.views import DecodeIndex, RequestView


@dataclass(frozen=True)
class ExtendBatch:
    """One prefill pass: the prefixes of all requests in order, and the lengths.

    A prefix is slots int64 [n], or the view of a prompt that is compressed chunk by chunk.
    """

    req_pool_indices: list[int]
    prefixes: list[torch.Tensor | RequestView]
    extend_lens: list[int]
    new_slots: torch.Tensor

    def prefix_rows(self, store: KVStore, layer: int) -> tuple[torch.Tensor, list[int]]:
        """Row codes int32 [total] of one layer, and how many each request has."""
        rows = [
            store.rows_of_view(layer, prefix)
            if isinstance(prefix, RequestView)
            else store.slot_rows(layer, prefix)
            for prefix in self.prefixes
        ]
        return torch.cat(rows), [len(each) for each in rows]


@dataclass(frozen=True)
class SlotGroup:
    """Decoding requests that attend to slots (never compressed, or not yet)."""

    members: torch.Tensor | None
    kv_slots: torch.Tensor
    kv_indptr: torch.Tensor
    kv_lens: list[int]
    new_slots: torch.Tensor


@dataclass(frozen=True)
class ViewGroup:
    """Decoding requests that attend to views. ``new_rows`` int32 [L, B]: this step's K and V."""

    members: torch.Tensor | None
    index: DecodeIndex
    new_rows: torch.Tensor


@dataclass(frozen=True)
class DecodeBatch:
    """One decode step. Either group may be missing.

    ``members`` of a group index the batch; None: the group is the whole batch.
    """

    slots: SlotGroup | None
    views: ViewGroup | None


class ArkvAttentionBackend(AttentionBackend):
    """Prefill over slots and chunk; decode over views with each row's attention fed back."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        pool = model_runner.token_to_kv_pool
        if not isinstance(pool, ArkvKVPool):
            raise RuntimeError(
                f"the arkv attention backend needs the arkv KV pool, got {type(pool).__name__}; "
                "choose it with --kv-policy, not with --attention-backend"
            )
        self.pool = pool
        self.store = pool.store
        self.controller: Controller = pool.controller
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.batch: ExtendBatch | DecodeBatch | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        if mode.is_decode():
            self.batch = self._begin_decode(forward_batch)
        elif mode.is_extend():
            self.batch = self._begin_extend(forward_batch)
        else:
            self.batch = None

    # -- prefill --

    def _begin_extend(self, forward_batch: Any) -> ExtendBatch:
        requests = forward_batch.req_pool_indices.tolist()
        prefix_lens = [int(n) for n in forward_batch.extend_prefix_lens_cpu]
        prefixes = [
            self.controller.view(r) or self.req_to_token[r, :n].long()
            for r, n in zip(requests, prefix_lens, strict=True)
        ]
        self.store.bind_slots(forward_batch.out_cache_loc)
        return ExtendBatch(
            requests,
            prefixes,
            [int(n) for n in forward_batch.extend_seq_lens_cpu],
            forward_batch.out_cache_loc,
        )

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        batch, index = self.batch, layer.layer_id - self.pool.start_layer
        assert isinstance(batch, ExtendBatch) and save_kv_cache
        q, k, v = _by_head(q, k, v, layer)
        self.controller.scale = layer.scaling
        write_rows(self.store.arena, self.store.slot_rows(index, batch.new_slots), k, v)
        prefix_rows, prefix_lens = batch.prefix_rows(self.store, index)
        out = extend_attention(
            q,
            k,
            v,
            self.store.arena,
            prefix_rows,
            prefix_lens,
            batch.extend_lens,
            layer.scaling,
        )
        chunks = q.split(batch.extend_lens)
        for request, queries in zip(batch.req_pool_indices, chunks, strict=True):
            self.controller.state(request).queries.append(index, queries)
        return out.flatten(1)

    # -- decode --

    def _begin_decode(self, forward_batch: Any) -> DecodeBatch:
        requests = forward_batch.req_pool_indices.tolist()
        seq_lens = forward_batch.seq_lens_cpu.tolist()
        views = [self.controller.view(request) for request in requests]
        return DecodeBatch(
            self._slot_group(
                [i for i, view in enumerate(views) if view is None],
                requests,
                seq_lens,
                forward_batch.out_cache_loc,
            ),
            self._view_group(
                [(i, view) for i, view in enumerate(views) if view is not None], seq_lens
            ),
        )

    def _slot_group(
        self,
        members: list[int],
        requests: list[int],
        seq_lens: list[int],
        out_cache_loc: torch.Tensor,
    ) -> SlotGroup | None:
        if not members:
            return None
        device = out_cache_loc.device
        index = _members(members, len(requests), device)
        new_slots = _part(out_cache_loc, index)
        self.store.bind_slots(new_slots)
        kv_lens = [seq_lens[i] for i in members]
        kv_slots = [self.req_to_token[requests[i], : seq_lens[i]] for i in members]
        indptr = torch.tensor([0, *kv_lens], device=device).cumsum(0)
        return SlotGroup(index, torch.cat(kv_slots).long(), indptr, kv_lens, new_slots)

    def _view_group(self, members: list[tuple[int, Any]], seq_lens: list[int]) -> ViewGroup | None:
        if not members:
            return None
        views = [view for _, view in members]
        positions = [seq_lens[i] - 1 for i, _ in members]
        new_rows = self.store.append_rows(views, positions)
        index = _members([i for i, _ in members], len(seq_lens), new_rows.device)
        return ViewGroup(index, self.store.decode_index(views), new_rows)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        batch, index = self.batch, layer.layer_id - self.pool.start_layer
        assert isinstance(batch, DecodeBatch) and save_kv_cache
        q, k, v = _by_head(q, k, v, layer)
        out = torch.empty_like(q)
        for group in (batch.slots, batch.views):
            if group is not None:
                at = group.members
                found = self._decode(
                    group, index, _part(q, at), _part(k, at), _part(v, at), layer.scaling
                )
                if at is None:
                    out = found
                else:
                    out[at] = found
        return out.flatten(1)

    def _decode(
        self,
        group: SlotGroup | ViewGroup,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        store = self.store
        if isinstance(group, SlotGroup):
            write_rows(store.arena, store.slot_rows(layer, group.new_slots), k, v)
            rows = store.slot_rows(layer, group.kv_slots)
            return decode_attention(q, store.arena, rows, group.kv_indptr, group.kv_lens, scale)[0]
        index = group.index
        write_rows(store.arena, group.new_rows[layer], k, v)
        rows = store.view_rows(layer, index)
        out, probs = decode_attention(q, store.arena, rows, index.kv_indptr, index.kv_lens, scale)
        store.observe(layer, index, probs)
        return out

    def support_triton(self) -> bool:
        # SGLang asks by name too; on a plain CPU there is no Triton to launch.
        return self.store.arena.k.is_cuda

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1


def _members(members: list[int], batch_size: int, device: torch.device) -> torch.Tensor | None:
    return None if len(members) == batch_size else torch.tensor(members, device=device)


def _part(x: torch.Tensor, members: torch.Tensor | None) -> torch.Tensor:
    return x if members is None else x[members]


def _by_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, heads * D] or [T, heads, D] to [T, heads, D]."""
    return (
        q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
        k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
        v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
    )
