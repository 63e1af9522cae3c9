"""Start an engine under a policy; what is outside `engine/` need not import SGLang for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sglang


@contextmanager
def running(policy: str, config: dict[str, Any] | None, **settings: Any) -> Iterator[Any]:
    """An `sglang.Engine` for the length of a ``with``.

    One at a time per process: its shutdown kills every child of the process.
    """
    engine = sglang.Engine(kv_policy=policy, kv_policy_config=config, **settings)
    try:
        yield engine
    finally:
        engine.shutdown()


def flush(engine: Any, timeout_s: float = 60) -> None:
    """Empty the prefix cache of an engine that runs nothing.

    Waits, since an answer is sent a moment before its request is gone. Raises RuntimeError.
    """
    done = engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=timeout_s))
    if not done.success:
        raise RuntimeError(
            f"the cache must be idle to be flushed, got no idle moment: {done.message}"
        )
