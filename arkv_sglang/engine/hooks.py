"""The hooks themselves. Each passes through untouched while the policy is `none`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from sglang.srt.arg_groups import resolution_hooks
from sglang.srt.arg_groups.choices import (
    add_attention_backend_choices,
    add_radix_eviction_policy_choices,
)
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import FINISH_ABORT, release_req
from sglang.srt.mem_cache.registry import register_radix_cache_backend
from sglang.srt.mem_cache.utils import _EVICTION_POLICY_FACTORIES
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_memory, get_schedule

from arkv_sglang.cache.heat import HeatStrategy
from arkv_sglang.cache.radix import ArkvRadixCache
from arkv_sglang.config import ArkvConfig, load_config
from arkv_sglang.engine import metrics, resolution
from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.backend import ArkvAttentionBackend
from arkv_sglang.engine.controller import Controller
from arkv_sglang.engine.pool import ArkvKVPool, PoolSize, model_geometry, sized_pool
from arkv_sglang.engine.resolution import BACKEND
from arkv_sglang.engine.server_args import ArkvServerArgs

Call = Callable[..., Any]

# The scheduler process's own; None in other processes and under the policy `none`.
_controller: Controller | None = None
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


# -- sizing and building the pool --


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
    global _controller
    allocator = context.params.token_to_kv_pool_allocator
    backend = context.tp_worker.model_runner.attn_backend
    for part, wanted in ((allocator, ArkvAllocator), (backend, ArkvAttentionBackend)):
        if type(part) is not wanted:
            raise RuntimeError(
                f"--kv-policy {get_memory().kv_policy} must run on {wanted.__name__}, got "
                f"{type(part).__name__}; another plugin or flag replaced it"
            )
    if missing():
        raise RuntimeError(f"hooks did not take in the scheduler: {', '.join(missing())}")
    _controller = allocator.controller
    _controller.chunk_tokens = _chunk_tokens()
    tree = ArkvRadixCache(context.params, allocator.controller)
    if context.params.enable_metrics:
        metrics.start(allocator, tree)
    return tree


# -- scheduling --


def keep_window(result: int, req: Any, input_len: int) -> int:
    """Recompute at least the window on a prefix hit: its queries score the prompt."""
    if _controller is None:
        return result
    if _controller.oversized(input_len):
        # Its view takes in all of the prompt, chunk by chunk.
        return 0
    remaining = req.sampling_params.max_new_tokens or 0
    if not _controller.compresses(input_len, remaining):
        return result
    return max(min(result, input_len - _controller.config.window), 0)


def running_growth(result: float, adder: Any, req: Any) -> float:
    if _controller is None:
        return result
    result = _controller.tokens_to_reserve(req, result)
    compressible = _controller.waits(req) and adder.tree_cache.compressible_units(req) > 0
    growth = _controller.growth_tokens(req, result, compressible)
    adder.memory_budget.promise(result, growth)
    return growth


def look_at_candidate(adder: Any, req: Any, *_: Any, **__: Any) -> None:
    if _controller is not None:
        adder.memory_budget.look_at(req)


def reopen_admission(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang shuts admission until a request ends; under a policy room also comes from views."""
    if _controller is None or not _controller.take_room_freed():
        return
    running_batch = kwargs["running_batch"] if "running_batch" in kwargs else args[-1]
    running_batch.batch_is_full = False


def keep_who_cannot_come_back(order: list[int], reqs: list[Any]) -> list[int]:
    """The last are thrown out first: those that could not be prefilled again must not be."""
    if _controller is None:
        return order
    return sorted(order, key=lambda index: _controller.comes_back(reqs[index]))


def end_who_cannot_come_back(
    original: Call, scheduler: Any, req: Any, is_retracted: bool = False
) -> None:
    """Thrown out with more text than the arena holds as a prompt, it would wait for ever, and all
    behind it."""
    if _controller is None or not req.output_ids or _controller.comes_back(req):
        original(scheduler, req, is_retracted)
        return
    req.to_finish = FINISH_ABORT(
        f"out of KV memory after {len(req.output_ids)} new tokens: the request was thrown out, and "
        f"its text of {len(req.origin_input_ids) + len(req.output_ids)} tokens no longer fits as a "
        "prompt; send fewer requests at once or ask for fewer tokens",
        status_code=HTTPStatus.SERVICE_UNAVAILABLE,
    )
    notice = AbortReq(rid=req.rid, finished_reason=req.to_finish.to_json())
    scheduler.send_abort_output(notice, req)
    scheduler._release_aborted_request(req)


def throw_out_parked_chunk(scheduler: Any, batch: Any) -> None:
    """A prompt that waits for room between two chunks goes before a running request.

    SGLang throws out running requests only, and ends the last of them for want of memory, even
    where the rest is held by a prompt that is in no batch.
    """
    req = scheduler.chunked_req
    if _controller is None or req is None or scheduler._pending_chunked_abort_req is req:
        return
    # Those that end in the step under way will have freed theirs before anyone is thrown out.
    if batch.is_empty() or scheduler._reqs_finishing_inflight(batch) or batch.check_decode_mem():
        return
    release_req(
        req=req,
        remaing_req_count=batch.batch_size(),
        req_to_token_pool=scheduler.req_to_token_pool,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        tree_cache=scheduler.tree_cache,
        hisparse_coordinator=None,
    )
    scheduler.chunked_req = None
    scheduler._add_request_to_queue(req, is_retracted=True)


def refuse_request(_: Any, scheduler: Any, req: Any) -> None:
    """A request that skips checkpoints would silently run uncompressed."""
    if _controller is None:
        return
    if req.positional_embed_overrides is not None:
        req.set_finish_with_abort(
            f"--kv-policy {_controller.config.policy} does not support "
            "positional_embed_overrides: such a prompt skips the prefix tree, where views are made"
        )


def refuse_beams(original: Call, coordinator: Any, req: Any, recv_req: Any) -> str | None:
    """Before a group of beams is set up, whose slots an aborted leader would leave behind."""
    if _controller is None:
        refusal: str | None = original(coordinator, req, recv_req)
        return refusal
    return (
        f"--kv-policy {_controller.config.policy} does not support beam search: beams share KV "
        "rows by slot; drop beam_width"
    )


# -- the table --


class Hook(NamedTuple):
    target: str
    function: Any
    kind: HookType
    why: str


_SRT = "sglang.srt"
_CONFIGURATOR = f"{_SRT}.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_SCHEDULER = f"{_SRT}.managers.scheduler.Scheduler"
_PARTS = f"{_SRT}.managers.scheduler_components"
_STREAMER = f"{_PARTS}.output_streamer.SchedulerOutputStreamer"

HOOKS = (
    Hook(f"{_SRT}.server_args.ServerArgs", ArkvServerArgs, HookType.REPLACE, "the two flags"),
    Hook(
        f"{_CONFIGURATOR}._resolve_memory_pool_config",
        size_pool,
        HookType.AFTER,
        "bytes to slots and units",
    ),
    Hook(f"{_CONFIGURATOR}._build_mha_kv_pool", build_pool, HookType.AROUND, "our pool"),
    Hook(
        f"{_CONFIGURATOR}._build_token_to_kv_pool_allocator",
        build_allocator,
        HookType.AROUND,
        "our allocator: there is no class seam at page size 1",
    ),
    Hook(
        f"{_SRT}.managers.schedule_batch.Req._compute_max_prefix_len",
        keep_window,
        HookType.AFTER,
        "a full prefix hit recomputes one token, too few to score by",
    ),
    Hook(
        f"{_SRT}.managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset",
        running_growth,
        HookType.AFTER,
        "SGLang reserves uncompressed growth for each running request",
    ),
    *(
        Hook(
            f"{_SRT}.managers.schedule_policy.PrefillAdder.{method}",
            look_at_candidate,
            HookType.BEFORE,
            "the budget is told how long prompt and answer are at most, not whose",
        )
        for method in ("_check_prefill_budget", "add_chunked_req")
    ),
    Hook(
        f"{_SCHEDULER}._get_new_batch_prefill_raw",
        reopen_admission,
        HookType.BEFORE,
        "a pass that found no room shuts admission; making a view gives room",
    ),
    Hook(
        f"{_SRT}.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order",
        keep_who_cannot_come_back,
        HookType.AFTER,
        "text that outgrew the arena in bf16 cannot be a prompt again",
    ),
    Hook(
        f"{_SCHEDULER}._add_request_to_queue",
        end_who_cannot_come_back,
        HookType.AROUND,
        "nothing ends a queued request that can never be admitted",
    ),
    Hook(
        f"{_SCHEDULER}.update_running_batch",
        throw_out_parked_chunk,
        HookType.BEFORE,
        "SGLang ends the last running request rather than throw out a chunked prompt",
    ),
    Hook(
        f"{_SCHEDULER}.init_req_max_new_tokens",
        refuse_request,
        HookType.AFTER,
        "refuse what skips checkpoints, request by request",
    ),
    Hook(
        f"{_SRT}.beam_search.coordinator.BeamCoordinator.validate_and_init",
        refuse_beams,
        HookType.AROUND,
        "beams share rows by slot",
    ),
    Hook(
        f"{_PARTS}.pool_stats_observer.SchedulerPoolStatsObserver.get_pool_stats",
        metrics.physical_usage,
        HookType.AFTER,
        "usage is slots or units, whichever is fuller",
    ),
    Hook(
        f"{_PARTS}.internal_state.SchedulerInternalStateController._add_memory_usage",
        metrics.add_state,
        HookType.AFTER,
        "/server_info",
    ),
    Hook(
        f"{_STREAMER}.build_additional_customized_info",
        metrics.request_figures,
        HookType.AFTER,
        "per-request figures leave the scheduler",
    ),
    Hook(
        f"{_SRT}.managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        metrics.put_in_meta_info,
        HookType.AROUND,
        "per-request figures reach meta_info as one value, not one per token",
    ),
    Hook(
        f"{_SRT}.utils.weight_versions.build_endpoint_weight_version_metadata",
        metrics.put_in_response,
        HookType.AFTER,
        "per-request figures reach OpenAI responses as `metadata`",
    ),
)


def install() -> None:
    """Register backends, resolution steps and hooks; SGLang applies the hooks right after."""
    add_attention_backend_choices([BACKEND])
    add_radix_eviction_policy_choices([BACKEND])
    _EVICTION_POLICY_FACTORIES[BACKEND] = HeatStrategy
    register_attention_backend(BACKEND)(ArkvAttentionBackend)
    register_radix_cache_backend(BACKEND, build_tree)
    resolution_hooks.register_resolution_hook("handle_missing_default_values")(
        resolution.resolve_policy
    )
    resolution_hooks.register_resolution_hook("handle_other_validations")(resolution.check_model)
    for hook in HOOKS:
        HookRegistry.register(hook.target, hook.function, hook.kind)
    # A class attribute keeps the class that it was given; SGLang's REPLACE does not reach it.
    engine = sys.modules.get("sglang.srt.entrypoints.engine")
    if engine is not None:
        engine.Engine.server_args_class = ArkvServerArgs
    metrics.open_streamer()


def missing() -> list[str]:
    """Targets whose hook did not take."""
    return [hook.target for hook in HOOKS if hook.target not in HookRegistry._patched]
