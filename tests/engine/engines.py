"""A real engine on the CPU for the length of a `with`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sglang

from arkv_sglang.demo.model import ensure_model


@contextmanager
def engine(
    policy: str = "none", config: dict[str, Any] | None = None, **kwargs: Any
) -> Iterator[sglang.Engine]:
    settings = {
        "model_path": str(ensure_model()),
        "device": "cpu",
        "max_total_tokens": 12_000,
        "chunked_prefill_size": 2048,
        "enable_custom_logit_processor": True,
        "log_level": "error",
        "random_seed": 0,
    } | kwargs
    started = sglang.Engine(kv_policy=policy, kv_policy_config=config, **settings)
    try:
        yield started
    finally:
        started.shutdown()
