"""SGLang plugin: everything of SGLang that is bent, in one table.

SGLang logs a plugin's exceptions and goes on without it. So nothing here may fail silently: a hook
that did not take stops the start-up (`verify_hooks`), and so does a pool, allocator, tree or
attention backend that is not ours (`building.build_tree`).
"""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version

from arkv_sglang.config import ConfigError

SGLANG_VERSION = "0.5.23"
POLICY_FLAG = "--kv-policy"

logger = logging.getLogger(__name__)


def register() -> None:
    """Entry point `sglang.srt.plugins`; SGLang calls it once in every process."""
    found = version("sglang")
    if found != SGLANG_VERSION:
        _refuse_policies(found)
        return
    if _only_detokenizes():
        return
    from arkv_sglang.engine import hooks

    hooks.install()


def _only_detokenizes() -> bool:
    """The detokenizer needs no hook; installing them would import the whole scheduler there."""
    managers = "sglang.srt.managers"
    return (
        f"{managers}.detokenizer_manager" in sys.modules
        and f"{managers}.scheduler" not in sys.modules
    )


def verify_hooks() -> None:
    """Raise `ConfigError` unless every hook of the table took."""
    from arkv_sglang.engine import hooks

    missing = hooks.missing()
    if missing:
        raise ConfigError(
            f"{POLICY_FLAG} cannot work: these hooks did not take in sglang {SGLANG_VERSION}: "
            f"{', '.join(missing)}; see the log above and disable other plugins that patch them"
        )


def _refuse_policies(found: str) -> None:
    """Leave another SGLang as it is, and stop whoever asks it for a policy."""
    message = (
        f"{POLICY_FLAG} needs sglang=={SGLANG_VERSION}, got {found}; "
        f"install sglang=={SGLANG_VERSION} or drop {POLICY_FLAG}"
    )
    if any(arg.split("=")[0].startswith(POLICY_FLAG) for arg in sys.argv[1:]):
        raise SystemExit(message)
    from sglang.srt.entrypoints.engine import Engine

    stock = Engine.server_args_class

    def refuse(**kwargs: object) -> object:
        if kwargs.pop("kv_policy", "none") != "none" or kwargs.pop("kv_policy_config", None):
            raise ConfigError(message)
        return stock(**kwargs)

    Engine.server_args_class = staticmethod(refuse)
    logger.warning("%s", message)
