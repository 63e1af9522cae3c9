"""Real engines on the CPU, one at a time: an engine's shutdown kills every child of its process."""

from typing import Any

import sglang

from arkv_sglang.demo.model import ensure_model

DEFAULTS = {
    "device": "cpu",
    "max_total_tokens": 12_000,
    "chunked_prefill_size": 2048,
    # Under overlap a logit processor sees one output token too few.
    "disable_overlap_schedule": True,
    "enable_custom_logit_processor": True,
    "grammar_backend": "none",
    "log_level": "error",
    "random_seed": 0,
}


class OneEngine:
    """Keeps the last engine running for whoever asks for the same settings next."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._engine: Any = None

    def start(
        self, policy: str = "none", config: dict[str, Any] | None = None, **kwargs: Any
    ) -> sglang.Engine:
        settings = DEFAULTS | {"kv_policy": policy, "kv_policy_config": config} | kwargs
        settings.setdefault("model_path", str(ensure_model()))
        key = repr(sorted(settings.items()))
        if key != self._key:
            self.stop()
            self._engine, self._key = sglang.Engine(**settings), key
        return self._engine

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = self._key = None
