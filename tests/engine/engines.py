"""Real engines on the CPU, one at a time: an engine's shutdown kills every child of its process."""

import json
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
    "sleep_on_idle": True,
}


LAYERS = 6
SHALLOW = {"json_model_override_args": json.dumps({"num_hidden_layers": LAYERS})}
"""The first layers of the model: for what must be right however well it writes, in a fraction of
the time."""


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


NEAR_TIE_NATS = 0.25
"""Two steps of a bf16 logit of 16 or more: with other chunks near-ties may fall either way."""


def same_text(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two outputs with ``top_logprobs_num=2`` agree, up to their first near-tie."""
    best = one["meta_info"]["output_top_logprobs"]
    for step, (a, b) in enumerate(zip(one["output_ids"], other["output_ids"], strict=True)):
        if a != b:
            return best[step][0][0] - best[step][1][0] <= NEAR_TIE_NATS
    return True
