"""What a model's own config says about its KV rows and its context, without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arkv_sglang.batch.pretrained import load_pretrained
from arkv_sglang.core import Geometry


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``geometry`` counts the heads of all ranks; None where rows are not plain K and V per head,
    and then ``unknown`` says why."""

    context_tokens: int
    geometry: Geometry | None
    unknown: str | None = None


def load_model_shape(engine: Mapping[str, Any]) -> ModelShape:
    """From the config.json that the engine will read. Raises ConfigError."""
    from transformers import AutoConfig

    path = engine["model_path"]
    config = load_pretrained(AutoConfig, path, engine, "a config.json", "correct it")
    text = config.get_text_config()
    context = engine.get("context_length") or _context_tokens(text)
    unknown = _why_unknown(text)
    geometry = None if unknown else _geometry(text, engine.get("tp_size") or 1)
    return ModelShape(context, geometry, unknown)


def _geometry(text: Any, tp_size: int) -> Geometry:
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    # A rank has one head at least, so fewer heads than ranks are kept more than once.
    return Geometry(text.num_hidden_layers, max(heads, tp_size), head_dim)


def _context_tokens(text: Any) -> int:
    """As SGLang reckons it: the positions, stretched where the config says so."""
    rope = getattr(text, "rope_parameters", None) or {}
    is_stretched = "original_max_position_embeddings" in rope or rope.get("rope_type") == "llama3"
    factor = 1 if is_stretched else rope.get("factor", 1)
    return int(factor * text.max_position_embeddings)


def _why_unknown(text: Any) -> str | None:
    if getattr(text, "kv_lora_rank", None):
        return "the model keeps latent vectors instead of K and V"
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"the model has layers of another kind: {', '.join(sorted(kinds))}"
    return None
