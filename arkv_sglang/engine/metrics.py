"""Figures for users: pool usage, `/server_info`, Prometheus, and each request's ``meta_info``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.observability.metrics_collector import radix_cache_metric_labels
from sglang.srt.runtime_context import get_observability, get_parallel

from arkv_sglang.engine.allocator import ArkvAllocator
from arkv_sglang.engine.figures import figures

META_INFO_KEY = "arkv"

_gauges: dict[str, Any] = {}


def physical_usage(stats: Any, observer: Any) -> Any:
    """Usage is slots or units, whichever is fuller. Also the moment to refresh the gauges."""
    allocator = observer.token_to_kv_pool_allocator
    if not isinstance(allocator, ArkvAllocator):
        return stats
    store, tree = allocator.store, observer.tree_cache
    used = 1 - (store.free_units + tree.reclaimable_units()) / store.num_units
    stats.full_token_usage = max(stats.full_token_usage, used)
    if _gauges:
        for name, value in figures(allocator, tree).items():
            _gauges[name].set(value)
    return stats


def start(allocator: ArkvAllocator, tree_cache: Any) -> None:
    """Make the gauges, in the scheduler process, once SGLang has set up Prometheus."""
    from prometheus_client import Gauge

    labels = radix_cache_metric_labels(type(tree_cache).__name__, get_parallel(), False)
    labels |= get_observability().extra_metric_labels or {}
    for name in figures(allocator, tree_cache):
        gauge = Gauge(
            name,
            name.replace("_", " "),
            labelnames=list(labels),
            multiprocess_mode="mostrecent",
        )
        _gauges[name] = gauge.labels(**labels)


def add_state(_: Any, controller: Any, state: dict[str, Any]) -> None:
    """`/server_info`: ``internal_states[i]["arkv"]``."""
    scheduler = controller.scheduler
    allocator = scheduler.token_to_kv_pool_allocator
    if isinstance(allocator, ArkvAllocator):
        state[META_INFO_KEY] = figures(allocator, scheduler.tree_cache)


# -- per request: scheduler -> tokenizer manager -> response --


def open_streamer() -> None:
    """Let the streamer ask `build_additional_customized_info`; it does nothing by itself."""
    SchedulerOutputStreamer.has_additional_customized_info = True


def request_figures(_: Any, streamer: Any, reqs: list[Any]) -> dict[str, list[Any]]:
    """The record that `Controller.release` left on each finished request."""
    records = [getattr(req, "arkv_record", None) if req.finished() else None for req in reqs]
    if not any(records):
        return {}
    return {META_INFO_KEY: [[record] if record else [] for record in records]}


def put_in_meta_info(
    original: Callable[..., None],
    manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, Any],
    index: int,
    finish_reason: Any,
) -> None:
    """One value per request; SGLang would append it to a list that streams slice by token."""
    rest = {key: values for key, values in customized_info.items() if key != META_INFO_KEY}
    original(manager, meta_info, state, rest, index, finish_reason)
    found = customized_info.get(META_INFO_KEY)
    if found and found[index]:
        meta_info[META_INFO_KEY] = found[index][0]


def put_in_response(metadata: dict[str, Any], meta_info: dict[str, Any]) -> dict[str, Any]:
    """OpenAI chat and text completions: ``response.metadata["arkv"]``."""
    if META_INFO_KEY in meta_info:
        metadata[META_INFO_KEY] = meta_info[META_INFO_KEY]
    return metadata
