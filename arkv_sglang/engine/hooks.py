"""Everything of SGLang that is bent, in one table."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from sglang.srt.arg_groups import resolution_hooks
from sglang.srt.arg_groups.choices import (
    add_attention_backend_choices,
    add_radix_eviction_policy_choices,
)
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.mem_cache.registry import register_radix_cache_backend
from sglang.srt.mem_cache.utils import _EVICTION_POLICY_FACTORIES
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from arkv_sglang.cache.heat import HeatStrategy
from arkv_sglang.engine import building, metrics, resolution, scheduling
from arkv_sglang.engine.backend import ArkvAttentionBackend
from arkv_sglang.engine.resolution import BACKEND
from arkv_sglang.engine.server_args import ArkvServerArgs


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
        building.size_pool,
        HookType.AFTER,
        "bytes to slots and units",
    ),
    Hook(f"{_CONFIGURATOR}._build_mha_kv_pool", building.build_pool, HookType.AROUND, "our pool"),
    Hook(
        f"{_CONFIGURATOR}._build_token_to_kv_pool_allocator",
        building.build_allocator,
        HookType.AROUND,
        "our allocator: there is no class seam at page size 1",
    ),
    Hook(
        f"{_SRT}.managers.schedule_batch.Req._compute_max_prefix_len",
        scheduling.keep_window,
        HookType.AFTER,
        "a full prefix hit recomputes one token, too few to score by",
    ),
    Hook(
        f"{_SRT}.managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset",
        scheduling.running_growth,
        HookType.AFTER,
        "SGLang reserves uncompressed growth for each running request",
    ),
    *(
        Hook(
            f"{_SRT}.managers.schedule_policy.PrefillAdder.{method}",
            scheduling.look_at_candidate,
            HookType.BEFORE,
            "the budget is told how long prompt and answer are at most, not whose",
        )
        for method in ("_check_prefill_budget", "add_chunked_req")
    ),
    Hook(
        f"{_SCHEDULER}._get_new_batch_prefill_raw",
        scheduling.reopen_admission,
        HookType.BEFORE,
        "a pass that found no room shuts admission; making a view gives room",
    ),
    Hook(
        f"{_SRT}.managers.schedule_batch.ScheduleBatch._get_decode_retraction_order",
        scheduling.keep_who_cannot_come_back,
        HookType.AFTER,
        "text that outgrew the arena in bf16 cannot be a prompt again",
    ),
    Hook(
        f"{_SCHEDULER}._add_request_to_queue",
        scheduling.end_who_cannot_come_back,
        HookType.AROUND,
        "nothing ends a queued request that can never be admitted",
    ),
    Hook(
        f"{_SCHEDULER}.update_running_batch",
        scheduling.throw_out_parked_chunk,
        HookType.BEFORE,
        "SGLang ends the last running request rather than throw out a chunked prompt",
    ),
    Hook(
        f"{_SCHEDULER}.init_req_max_new_tokens",
        scheduling.refuse_request,
        HookType.AFTER,
        "refuse what skips checkpoints, request by request",
    ),
    Hook(
        f"{_SRT}.beam_search.coordinator.BeamCoordinator.validate_and_init",
        scheduling.refuse_beams,
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
    register_radix_cache_backend(BACKEND, _build_tree)
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


def _build_tree(context: Any) -> Any:
    """The last part to be built, so it proves first that the hooks took in this process, too."""
    if missing():
        raise RuntimeError(f"hooks did not take in the scheduler: {', '.join(missing())}")
    return building.build_tree(context)
