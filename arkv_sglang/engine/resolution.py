"""Start-up: validate the policy, refuse what does not go with it, choose our backends.

Runs while SGLang resolves its arguments, in the launching process, before anything is spawned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

from arkv_sglang.config import load_config
from arkv_sglang.engine.pool import model_geometry, sized_pool
from arkv_sglang.support import refuse_flags, refuse_model

BACKEND = "arkv"

logger = logging.getLogger(__name__)

Step = Callable[[Any], None]


def resolve_policy(server_args: Any, previous: Step) -> None:
    """Step `handle_missing_default_values`: everything that needs no model."""
    view = resolving_view(server_args)
    config = load_config(view.kv_policy, view.kv_policy_config)
    if config is not None:
        # As asked for, and as resolved so far: SGLang may have changed either.
        for flags in (server_args, view):
            refuse_flags(view.kv_policy, flags)
        # Imported late: verification lives with the hooks.
        from arkv_sglang.engine.plugin import verify_hooks

        verify_hooks()
        declare_resolution(
            server_args,
            "arkv",
            kv_policy_config=config.describe(),
            attention_backend=BACKEND,
            radix_cache_backend=BACKEND,
            radix_eviction_policy=BACKEND,
            page_size=1,
            disable_cuda_graph=True,
        )
    previous(server_args)
    if config is not None:
        _no_overlap_but_on_cpu(server_args, config.policy)


def _no_overlap_but_on_cpu(server_args: Any, policy: str) -> None:
    """On the CPU a forward has ended when what comes after it begins; elsewhere nothing shows yet
    that rows move in the order of the forward stream."""
    view = resolving_view(server_args)
    if view.device == "cpu" or view.disable_overlap_schedule:
        return
    # It is SGLang's default, so whoever starts an engine need not have asked for it.
    logger.warning("--kv-policy %s: overlap scheduling is off on %s", policy, view.device)
    declare_resolution(server_args, "arkv", disable_overlap_schedule=True)


def check_model(server_args: Any, previous: Step) -> None:
    """Step `handle_other_validations`: what only the model's own config can tell."""
    previous(server_args)
    view = resolving_view(server_args)
    config = load_config(view.kv_policy, view.kv_policy_config)
    if config is None:
        return
    model = model_config_of(server_args)
    refuse_model(config.policy, model)
    if view.max_total_tokens is not None:
        # Else the memory is known once the weights are loaded, and checked there.
        sized_pool(
            config,
            model_geometry(model, model.num_hidden_layers),
            view.max_total_tokens,
            model.context_len,
            view.chunked_prefill_size,
        )
