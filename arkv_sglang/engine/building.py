"""Hooks that build our parts in place of SGLang's: pool, allocator, tree.

Each passes through untouched while the policy is `none`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.runtime_context import get_memory, get_schedule

from arkv_sglang.cache.radix import ArkvRadixCache
from arkv_sglang.config import ArkvConfig, load_config
from arkv_sglang.engine import metrics, scheduling
from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.backend import ArkvAttentionBackend
from arkv_sglang.engine.pool import ArkvKVPool, PoolSize, model_geometry, sized_pool

Call = Callable[..., Any]

_pool_size: PoolSize | None = None


def _active() -> bool:
    return bool(get_memory().kv_policy != "none")


def _config() -> ArkvConfig:
    config = load_config(get_memory().kv_policy, get_memory().kv_policy_config)
    assert config is not None
    return config


def _chunk_tokens() -> int | None:
    """Tokens of one prefill pass; None: prompts are prefilled whole."""
    size = get_schedule().chunked_prefill_size
    return size if size is not None and size > 0 else None


def size_pool(config: Any, configurator: Any, *_: Any, **__: Any) -> Any:
    """Stock token count x stock bytes per token = the bytes that we may use."""
    global _pool_size
    if not _active():
        return config
    policy = _config()
    size = sized_pool(
        policy,
        model_geometry(configurator.model_config, configurator.layer_info.num_effective_layers),
        config.max_total_num_tokens,
        configurator.model_config.context_len,
        _chunk_tokens(),
    )
    _pool_size = size
    config.max_total_num_tokens = size.num_slots
    return config


def build_pool(original: Call, configurator: Any, **kwargs: Any) -> Any:
    if not _active():
        return original(configurator, **kwargs)
    config = _config()
    assert _pool_size is not None
    num_units = _pool_size.num_units
    kwargs["mha_pool_class"] = lambda size, **pool: ArkvKVPool(
        size, num_units=num_units, config=config, **pool
    )
    return original(configurator, **kwargs)


def build_allocator(original: Call, configurator: Any, **kwargs: Any) -> Any:
    if not _active() or kwargs["token_to_kv_pool_allocator"] is not None:
        return original(configurator, **kwargs)
    return ArkvAllocator(
        kwargs["sizes"].max_total_num_tokens,
        configurator.kv_cache_dtype,
        configurator.device,
        kwargs["token_to_kv_pool"],
        need_sort=False,
    )


def build_tree(context: Any) -> ArkvRadixCache:
    """Tree factory; the last part to be built, so it proves that all the parts are ours."""
    allocator = context.params.token_to_kv_pool_allocator
    backend = context.tp_worker.model_runner.attn_backend
    for part, wanted in ((allocator, ArkvAllocator), (backend, ArkvAttentionBackend)):
        if type(part) is not wanted:
            raise RuntimeError(
                f"--kv-policy {get_memory().kv_policy} must run on {wanted.__name__}, got "
                f"{type(part).__name__}; another plugin or flag replaced it"
            )
    controller = allocator.controller
    controller.chunk_tokens = _chunk_tokens()
    scheduling.controller = controller
    tree = ArkvRadixCache(context.params, controller)
    if context.params.enable_metrics:
        metrics.start(allocator, tree)
    return tree
