"""What the ``arkv_*`` figures of an engine are. No SGLang in here, so that names can be checked
without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arkv_sglang.core import STORED_TIERS

if TYPE_CHECKING:
    from arkv_sglang.engine.allocator import ArkvAllocator


def figures(allocator: ArkvAllocator, tree_cache: Any) -> dict[str, int]:
    """Every ``arkv_*`` figure of one scheduler: bytes by owner and tier, overhead, counters.

    Rows of slots are the tree's where a node holds them, else prompts'. Tiers by bytes without
    scales, which are allocated with the arena and stand in the overhead.
    """
    usage, controller = allocator.store.usage(), allocator.controller
    found = {
        "arkv_arena_bytes": usage.arena_bytes,
        "arkv_free_bytes": usage.free_bytes,
        "arkv_capacity_tokens": allocator.capacity_tokens,
        "arkv_max_text_tokens": allocator.max_text_tokens,
        "arkv_overhead_bytes": usage.overhead_bytes_total + controller.statistics_bytes,
        "arkv_overhead_statistics_bytes": controller.statistics_bytes,
    }
    tree = tree_cache.bytes_by_tier()
    for tier in STORED_TIERS:
        name = tier.name.lower()
        found[f"arkv_tree_{name}_bytes"] = tree[tier]
        found[f"arkv_prompts_{name}_bytes"] = usage.slot_bytes[tier] - tree[tier]
        found[f"arkv_views_{name}_bytes"] = usage.view_bytes[tier]
    for what, count in usage.overhead_bytes.items():
        found[f"arkv_overhead_{what}_bytes"] = count
    return found | {
        "arkv_rows_evicted_total": usage.rows_evicted_total,
        "arkv_rows_demoted_total": usage.rows_demoted_total,
        "arkv_rows_moved_total": usage.rows_moved_total,
        "arkv_nodes_demoted_total": tree_cache.nodes_demoted_total,
        "arkv_tokens_evicted_total": tree_cache.tokens_evicted_total,
        "arkv_views_created_total": controller.totals.privatized,
        "arkv_views_taken_over_total": tree_cache.views_taken_over_total,
        "arkv_views_created_under_pressure_total": tree_cache.views_under_pressure_total,
        "arkv_views_replanned_total": controller.totals.replanned,
        "arkv_views_tightened_under_pressure_total": controller.totals.tightened_under_pressure,
        "arkv_requests_retracted_total": controller.totals.retracted,
        "arkv_views_waiting_requests": controller.num_waiting,
        "arkv_views_requests": controller.num_views,
        "arkv_running_requests": len(controller.states),
        "arkv_peak_running_requests": controller.totals.peak_requests,
    }
