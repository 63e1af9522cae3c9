"""How much memory this process and its children hold."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import psutil


def tree_rss_bytes() -> int:
    """Resident bytes of this process and all below it; pages that they share count each time."""
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def device_used_bytes() -> int | None:
    """Bytes in use on this process's first GPU, whoever uses them; None without one."""
    device = _device()
    if device is None:
        return None
    import pynvml  # type: ignore[import-untyped]

    return int(pynvml.nvmlDeviceGetMemoryInfo(device).used)


@cache
def _device() -> Any:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not visible or visible == "-1":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        if visible.isdigit():
            return pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        return pynvml.nvmlDeviceGetHandleByUUID(visible)
    except pynvml.NVMLError:
        return None
