"""What belongs to a model but its weights, as the engine will read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arkv_sglang.config import ConfigError


def load_pretrained(kind: Any, path: str, engine: Mapping[str, Any], what: str, remedy: str) -> Any:
    """``kind.from_pretrained(path)``, ``kind`` being one of transformers' Auto classes. Raises
    ConfigError, which says that ``path`` must hold ``what``."""
    try:
        return kind.from_pretrained(
            path,
            trust_remote_code=bool(engine.get("trust_remote_code", False)),
            revision=engine.get("revision") or "main",
        )
    except Exception as error:
        # A file that is none makes the libraries below raise anything.
        reason = [*str(error).strip().splitlines(), type(error).__name__][0]
        raise ConfigError(
            f"engine.model_path must hold {what}, got {path!r} ({reason}); {remedy}"
        ) from None
