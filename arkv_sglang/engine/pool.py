"""The KV pool that SGLang builds: slots on the outside, the tiered store within."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from arkv_sglang.config import ArkvConfig, ConfigError
from arkv_sglang.core import Geometry
from arkv_sglang.engine.controller import Controller
from arkv_sglang.sizes import PoolSize
from arkv_sglang.storage.store import KVStore


def model_geometry(model_config: Any, num_layers: int) -> Geometry:
    """Rows of an SGLang model on one rank that holds all of its heads."""
    return Geometry(num_layers, model_config.get_num_kv_heads(1, 1), model_config.head_dim)


def sized_pool(
    config: ArkvConfig,
    geometry: Geometry,
    num_tokens: int,
    context_len: int,
    chunk_tokens: int | None,
) -> PoolSize:
    """The pool in the bytes of ``num_tokens`` bf16 tokens. Raises `ConfigError` if it cannot work.

    ``chunk_tokens``: of one prefill pass; None or less than 1: prompts are prefilled whole.
    """
    size = PoolSize.from_tokens(num_tokens, context_len, geometry)
    capacity = size.capacity_tokens(geometry)
    spare = config.num_protected + 1
    chunk = min(chunk_tokens, context_len) if chunk_tokens and chunk_tokens > 0 else 1
    if capacity >= chunk + spare:
        return size
    enough = bisect_left(
        range(MOST_TOKENS),
        chunk + spare,
        key=lambda n: PoolSize.from_tokens(n, context_len, geometry).capacity_tokens(geometry),
    )
    message = (
        f"the KV memory must hold one prefill chunk ({chunk} tokens) and sinks + window + 1 "
        f"({spare} tokens) in bf16, got {num_tokens} tokens, which after the tables of rows are "
        f"{capacity}; raise --max-total-tokens or the memory to at least {enough} tokens"
    )
    if capacity > spare:
        message += f", or lower --chunked-prefill-size to at most {capacity - spare}"
    raise ConfigError(message)


MOST_TOKENS = 1 << 29


class ArkvKVPool(MHATokenToKVPool):
    """`MHATokenToKVPool` without buffers of its own: rows live in ``store``.

    Nothing may index it by slot, so the buffer accessors refuse.
    """

    def __init__(self, size: int, *, num_units: int, config: ArkvConfig, **kwargs: Any) -> None:
        self._num_units = num_units
        self._config = config
        super().__init__(size, **kwargs)

    def _create_buffers(self) -> None:
        geometry = Geometry(self.layer_num, self.head_num, self.head_dim)
        self.store = KVStore(geometry, self._num_units, self.size, self.device)
        self.controller = Controller(self._config, self.store)

    def get_kv_size_bytes(self) -> tuple[int, int]:
        arena = self.store.arena
        return _num_bytes(arena.k, arena.k_scale), _num_bytes(arena.v, arena.v_scale)

    def set_kv_buffer(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("rows are written by the arkv attention backend alone")

    def _get_key_buffer(self, layer_id: int) -> torch.Tensor:
        raise RuntimeError("an arkv pool has no buffer per slot; read rows through its store")

    _get_value_buffer = _get_key_buffer

    def get_contiguous_buf_infos(self) -> Any:
        raise RuntimeError("an arkv pool cannot be transferred by slot")

    def move_kv_cache(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("an arkv pool does not move rows by slot")

    get_cpu_copy = load_cpu_copy = move_kv_cache

    def _clear_buffers(self) -> None:
        self.store.clear()


def _num_bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
