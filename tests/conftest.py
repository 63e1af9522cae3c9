"""Rings by folder, SGLang's strict checks for all of them, and skips that say why.

Where tests run two at a time, those that share engines or a cluster stay in one process."""

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

RINGS = ("unit", "engine", "job", "gpu", "soak")
SHARING = ("engine", "job", "gpu")
TESTS = Path(__file__).parent

# Set before SGLang is imported, so that its child processes inherit them.
os.environ.update(
    SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE="1",
    SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY="1",
    SGLANG_CHECK_KV_PAGE_INVARIANTS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    # Threads that wait leave their core to the other processes.
    OMP_WAIT_POLICY="passive",
)

NO_GPU = "no CUDA device is visible"
GPU_VISIBLE = "this ring runs on the CPU: hide the GPU with CUDA_VISIBLE_DEVICES= (make test does)"


class ByRing(LoadScopeScheduling):
    """The marks that xdist has for groups do nothing under this pytest."""

    def _split_scope(self, nodeid: str) -> str:
        ring = nodeid.split("/")[1]
        return ring if ring in SHARING else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByRing:
    return ByRing(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ring = item.path.relative_to(TESTS).parts[0]
        if ring in RINGS:
            item.add_marker(ring)
    _skip_what_the_machine_cannot_run(items)


def _skip_what_the_machine_cannot_run(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    on_cpu = [item for item in items if item.get_closest_marker("engine") and item not in on_gpu]
    if not (on_gpu or on_cpu):
        return
    import torch

    has_gpu = torch.cuda.is_available()
    for item in on_cpu if has_gpu else on_gpu:
        item.add_marker(pytest.mark.skip(reason=GPU_VISIBLE if has_gpu else NO_GPU))
