"""A folder for what an engine compiles, which no other engine uses at the same time.

Engines of one machine that compile into one folder read each other's half-written files. So each
takes a folder that is free, the first one first: a restart finds what was compiled before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import filelock

from arkv_sglang.batch.types import BatchError, describe

DEFAULT = "~/.cache/arkv_sglang/engines"
# What SGLang 0.5.23 and the libraries below it read. FlashInfer adds .cache/flashinfer itself.
VARIABLES = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "TILELANG_CACHE_DIR": "tilelang",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


class CompileCache:
    """The folder is this process's until it ends. Raises BatchError when there can be none."""

    def __init__(self, root: str | None) -> None:
        self._root = Path(root or DEFAULT).expanduser()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self.folder = self._take()
        except (OSError, NotImplementedError) as error:
            raise BatchError(
                "engines.cache_dir must be a folder with file locks where engines can write, "
                f"got {str(self._root)!r} ({describe(error)}); name another"
            ) from None

    def _take(self) -> Path:
        number = 0
        while True:
            path = self._root / f"{number}.lock"
            self._lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
            try:
                self._lock.acquire(blocking=False)
            except filelock.Timeout:
                number += 1
            else:
                folder = self._root / str(number)
                folder.mkdir(exist_ok=True)
                return folder

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """For the environment, but those that were ``given`` by the user."""
        return {
            name: os.path.join(self.folder, folder)
            for name, folder in VARIABLES.items()
            if name not in given
        }
