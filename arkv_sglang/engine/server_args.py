"""`ServerArgs` with ``kv_policy`` and ``kv_policy_config``. Importable in every SGLang process."""

from __future__ import annotations

from typing import Any

import sglang.srt.server_args as stock
from sglang.srt.arg_groups.arg_utils import NS, A, Arg

from arkv_sglang.config import POLICIES


class ArkvServerArgs(stock.ServerArgs, dict=True, kw_only=True):  # type: ignore[call-arg]
    """SGLang's own arguments and two more; pickled to its child processes by reference."""

    kv_policy: A[
        str,
        Arg(
            help="How the KV cache holds tokens: 'none' is stock SGLang; 'original' keeps bf16 or "
            "evicts; 'quantized' keeps fp8 or evicts, with sinks and window in bf16; 'arkv-paper' "
            "and 'arkv' use bf16, fp8 and eviction.",
            choices=list(POLICIES),
            resolvable=True,
        ),
        NS("memory"),
    ] = "none"
    kv_policy_config: A[
        Any,
        Arg(
            help="Settings of --kv-policy, as a JSON object or @file.yaml.",
            type_parser=str,
            resolvable=True,
        ),
        NS("memory"),
    ] = None
