"""What a KV policy cannot be combined with: refused at start-up, by name, with the reason.

No SGLang in here, so that the batch job refuses its settings before it starts an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from arkv_sglang.config import ConfigError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Refusal(NamedTuple):
    """A flag, what it may be, and why nothing else works."""

    field: str
    allowed: Callable[[Any], bool]
    reason: str


def _off(value: Any) -> bool:
    return not value


def _one(value: Any) -> bool:
    return value in (None, 1)


def _unset(value: Any) -> bool:
    return value is None


def _among(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


_SLOTS = "it reads or copies KV by slot, and rows of mixed tiers have no buffer per slot"
_TREE = "it brings its own prefix tree, and views are made in ours"
_SHARD = "attention scores differ per rank and are not exchanged yet"

REFUSALS = (
    Refusal("disable_radix_cache", _off, "the radix tree is where views are made"),
    Refusal("page_size", _one, "rows are allocated token by token, so pages must be of size 1"),
    Refusal("tp_size", _one, _SHARD),
    Refusal("pp_size", _one, _SHARD),
    Refusal("dcp_size", _one, _SHARD),
    Refusal("attn_cp_size", _one, _SHARD),
    Refusal("enable_dp_attention", _off, _SHARD),
    Refusal("enable_kv_cache_sharding", _off, _SHARD),
    Refusal("enable_prefill_cp", _off, _SHARD),
    Refusal(
        "kv_cache_dtype",
        _among("auto", "bf16", "bfloat16"),
        "the policy chooses each row's precision",
    ),
    Refusal("attention_backend", _among(None, "arkv"), "the policy brings its own backend"),
    Refusal("prefill_attention_backend", _unset, "the policy brings its own backend"),
    Refusal("decode_attention_backend", _unset, "the policy brings its own backend"),
    Refusal("radix_cache_backend", _among(None, "arkv"), _TREE),
    Refusal(
        "radix_eviction_policy",
        _among("lru", "arkv"),
        "nodes are demoted and evicted by heavy-hitter score",
    ),
    Refusal("radix_eviction_policy_config", _off, "the heavy-hitter score takes no parameters"),
    Refusal("speculative_algorithm", _unset, "draft tokens are verified in slots that views lack"),
    Refusal("enable_mixed_chunk", _off, "prefill and decode of one pass need different layouts"),
    Refusal("disaggregation_mode", _among("null", None), _SLOTS),
    Refusal("enable_pd_role_switch", _off, _SLOTS),
    Refusal("enable_hierarchical_cache", _off, _SLOTS),
    Refusal("enable_lmcache", _off, _SLOTS),
    Refusal("enable_flexkv", _off, _SLOTS),
    Refusal("enable_unified_cache_external_linker", _off, _SLOTS),
    Refusal("enable_hisparse", _off, _SLOTS),
    Refusal("enable_unified_memory", _off, _SLOTS),
    Refusal("enable_page_major_kv_layout", _off, _SLOTS),
    Refusal("kv_canary", _among(None, "none", "off", False), _SLOTS),
    Refusal("enable_session_radix_cache", _off, _TREE),
    Refusal("enable_streaming_session", _off, _TREE),
    Refusal("strip_thinking_cache", _off, "it frees output slots that a view has replaced"),
    Refusal("enable_deterministic_inference", _off, "what is evicted depends on the batch"),
    Refusal("rl_on_policy_target", _unset, "what is evicted depends on the batch"),
    Refusal("enable_memory_saver", _off, "the arena is not in a memory-saver region"),
    Refusal("enable_torch_compile", _off, "row lists change shape at every step"),
    Refusal("enable_two_batch_overlap", _off, "a step's rows are prepared for one batch"),
    Refusal("enable_single_batch_overlap", _off, "a step's rows are prepared for one batch"),
    Refusal("enable_pdmux", _off, "a step's rows are prepared for one batch"),
    Refusal("dllm_algorithm", _unset, "diffusion blocks rewrite KV in place"),
    Refusal("prefill_only_disable_kv_cache", _off, "there would be no KV to hold"),
    Refusal("is_embedding", _off, "embedding models never decode, so nothing would be compressed"),
    Refusal("enable_multimodal", _off, "only text models are supported"),
    *(
        Refusal(field, _off, "CUDA graphs are not supported yet and are turned off")
        for field in (
            "cuda_graph_config",
            "cuda_graph_backend_decode",
            "cuda_graph_backend_prefill",
            "cuda_graph_max_bs_decode",
            "cuda_graph_max_bs_prefill",
            "cuda_graph_bs_decode",
            "cuda_graph_bs_prefill",
            "enable_profile_cuda_graph",
            "debug_cuda_graph",
        )
    ),
    Refusal(
        "num_continuous_decode_steps", _one, "room is checked and views are tightened every step"
    ),
)

ENVIRONMENT = {
    "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "it sizes the KV pool again behind ours",
    "SGLANG_USE_HND_KVCACHE": "rows have a layout of their own",
    "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP": "views would be made between a prompt's "
    "allocation and its forward, which needs the room",
    "SGLANG_RUST_SERVER": "its output path drops the per-request KV figures",
}


PREEMPTION = "does not support priority preemption: a preempted request's view would be lost; add"


def refuse_flags(policy: str, view: Any) -> None:
    """Raise `ConfigError` for the first unsupported flag or environment variable in ``view``."""
    for field, allowed, reason in REFUSALS:
        value = getattr(view, field)
        if not allowed(value):
            raise ConfigError(
                f"--kv-policy {policy} {_refused(_flag(field), value, reason)}; "
                "drop it or use --kv-policy none"
            )
    if view.enable_priority_scheduling and not view.disable_priority_preemption:
        raise ConfigError(f"--kv-policy {policy} {PREEMPTION} --disable-priority-preemption")
    for name, reason in ENVIRONMENT.items():
        if os.environ.get(name, "0").lower() not in ("", "0", "false", "no", "off"):
            raise ConfigError(
                f"--kv-policy {policy} {_refused(name, os.environ[name], reason)}; "
                "drop it or use --kv-policy none"
            )


def refuse_arguments(policy: str, arguments: Mapping[str, Any]) -> None:
    """The same of arguments for ``sglang.Engine`` that stand in a job's section ``engine``. What
    is not given, or null, is SGLang's default, which is supported."""
    for field, allowed, reason in REFUSALS:
        value = arguments.get(field)
        if value is not None and not allowed(value):
            raise ConfigError(
                f"engine.kv_policy {policy} {_refused(f'engine.{field}', value, reason)}; "
                "remove it or set engine.kv_policy to none"
            )
    preempts = not arguments.get("disable_priority_preemption")
    if arguments.get("enable_priority_scheduling") and preempts:
        raise ConfigError(
            f"engine.kv_policy {policy} {PREEMPTION} engine.disable_priority_preemption: true"
        )


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _refused(name: str, value: Any, reason: str) -> str:
    return f"does not support {name} (got {value!r}): {reason}"


def refuse_model(policy: str, model_config: Any) -> None:
    """Raise `ConfigError` for a model whose attention or KV layout is not supported."""
    name = (model_config.hf_config.architectures or ["none named"])[0]
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"--kv-policy {policy} supports {', '.join(ARCHITECTURES)}, got {name}; "
            "use --kv-policy none for this model"
        )
    dtype = str(model_config.dtype).removeprefix("torch.")
    if dtype != "bfloat16":
        raise ConfigError(
            f"--kv-policy {policy} needs --dtype bfloat16, as original rows are, got {dtype}"
        )
    if model_config.head_dim != model_config.v_head_dim or model_config.head_dim % 2:
        raise ConfigError(
            f"--kv-policy {policy} needs K and V of one even width, got head_dim "
            f"{model_config.head_dim} and v_head_dim {model_config.v_head_dim}; "
            "use --kv-policy none for this model"
        )
    if getattr(model_config.hf_config, "use_sliding_window", False):
        raise ConfigError(
            f"--kv-policy {policy} needs full attention in every layer, got a model with "
            "use_sliding_window; use --kv-policy none for this model"
        )
