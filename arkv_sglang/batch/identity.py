"""What an answer depends on, as one hash; and which model gave it.

The hash is over everything that may change an answer, unless it is known not to: a setting that
nobody thought of costs work done again, and never mixes answers of two kinds in one table.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from arkv_sglang.batch.config import JobConfig
from arkv_sglang.batch.redact import redact
from arkv_sglang.batch.task import SINGLE
from arkv_sglang.batch.types import RunFailed, describe
from arkv_sglang.config import load_config as load_policy

# Where documents come from and rows go to, how the work is spread, and how it is judged.
OTHER_SECTIONS = {"input", "engines", "output", "run", "audit"}

# Settings of SGLang that change no answer, or only as load does (which requests share a batch
# changes the rounding of bf16 sums), so that a run which met the limits of its memory may resume
# with others: logs and metrics, addresses, memory, scheduling, CUDA graphs, and how many devices.
_OTHER = """
    download_dir
    log_level log_level_http log_requests log_requests_level log_requests_format log_requests_target
    crash_dump_folder show_time_cost enable_metrics enable_metrics_for_all_schedulers
    enable_mfu_metrics load_snapshot_publish_interval gc_warning_threshold_secs decode_log_interval
    enable_request_time_stats_logging enable_trace otlp_traces_endpoint otlp_service_name
    export_metrics_to_file export_metrics_to_file_dir extra_metric_labels enable_cache_report
    host port nccl_port dist_init_addr dist_timeout api_key admin_api_key served_model_name
    skip_server_warmup warmups watchdog_timeout soft_watchdog_timeout sleep_on_idle gc_threshold
    mem_fraction_static max_total_tokens max_running_requests max_queued_requests max_prefill_tokens
    chunked_prefill_size prefill_max_requests enable_dynamic_chunking enable_mixed_chunk
    schedule_policy schedule_conservativeness retraction_policy num_continuous_decode_steps
    scheduler_recv_interval stream_interval batch_notify_size disable_overlap_schedule page_size
    disable_radix_cache radix_eviction_policy radix_eviction_policy_config cpu_offload_gb
    enable_hierarchical_cache hicache_ratio hicache_size hicache_write_policy hicache_io_backend
    cuda_graph_config cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode
    cuda_graph_bs_prefill disable_cuda_graph disable_decode_cuda_graph disable_prefill_cuda_graph
    disable_cuda_graph_padding
    tp_size dp_size pp_size ep_size nnodes node_rank base_gpu_id gpu_id_step numa_node
    tokenizer_worker_num detokenizer_worker_num
"""
OTHER_ENGINE_SETTINGS = frozenset(_OTHER.split())
# Told in another form: see answer_settings.
_RESOLVED_SETTINGS = {"model_path", "revision", "kv_policy", "kv_policy_config"}

_WHOLE_BYTES = 16 << 20
_SAMPLE_BYTES = 64 << 10
_NOT_OF_A_MODEL = (".md", ".lock", ".tmp", ".incomplete")


def answer_settings(config: JobConfig) -> dict[str, Any]:
    """What ``config_hash`` is over, as plain data without secrets, defaults filled in."""
    sections = config.model_dump(mode="json", exclude=OTHER_SECTIONS)
    if config.strategy.kind == SINGLE:
        # The rest of the section says how to split.
        del sections["strategy"]
    left_out = OTHER_ENGINE_SETTINGS | _RESOLVED_SETTINGS
    engine = {
        key: value
        for key, value in config.engine.items()
        if key not in left_out and value is not None
    }
    model = model_identity(config.engine)
    # A folder is known by what is in it, so it may move; a name on a hub by its revision.
    where = model["hash"] or {"name": model["id"], "revision": model["revision"]}
    settings: dict[str, Any] = redact(
        {**sections, "engine": engine, "model": where, "policy": policy_settings(config.engine)}
    )
    return settings


def config_hash(config: JobConfig) -> str:
    """64 bits as hexadecimal digits."""
    data = json.dumps(answer_settings(config), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def policy_settings(engine: dict[str, Any]) -> dict[str, Any]:
    """The KV policy and all its settings, whichever way they were given. Raises ConfigError."""
    name = engine.get("kv_policy") or "none"
    policy = load_policy(name, engine.get("kv_policy_config"))
    return {"policy": name} if policy is None else policy.describe()


def model_identity(engine: dict[str, Any]) -> dict[str, Any]:
    """``id`` and ``revision`` as configured; for a folder ``hash``, else ``commit`` where the
    hub's cache on this machine tells it. Raises RunFailed."""
    path, revision = engine["model_path"], engine.get("revision")
    folder = Path(path)
    is_folder = folder.is_dir()
    return {
        "id": path,
        "revision": revision,
        "commit": None if is_folder else _cached_commit(path, revision),
        "hash": _hash_readable(folder) if is_folder else None,
    }


def _hash_readable(folder: Path) -> str:
    try:
        return _hash_folder(folder)
    except OSError as error:
        raise RunFailed(
            f"engine.model_path must be a folder that can be read, got {str(folder)!r} "
            f"({describe(error)}); correct the rights to it"
        ) from None


def _hash_folder(folder: Path) -> str:
    """Of names, sizes, and contents: whole small files, and both ends of large ones, which a
    model that was trained further does not share. Reads some megabytes, not the weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") or path.name.lower().endswith(_NOT_OF_A_MODEL)
        if hidden or not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(json.dumps([path.name, size]).encode())
        with path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(-_SAMPLE_BYTES, 2)
                digest.update(file.read())
    return digest.hexdigest()[:16]


def _cached_commit(name: str, revision: str | None) -> str | None:
    """The name of the snapshot that the hub's cache has for the revision; asks no network."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "tokenizer_config.json"):
        try:
            found = try_to_load_from_cache(name, file, revision=revision)
        except ValueError:
            return None
        if isinstance(found, str):
            return Path(found).parent.name
    return None
