"""Rings by folder, SGLang's strict checks for all of them, and skips that say why."""

import os
from pathlib import Path

import pytest

RINGS = ("unit", "engine", "job", "gpu", "soak")
TESTS = Path(__file__).parent

# Set before SGLang is imported, so that its child processes inherit them.
os.environ.update(
    SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE="1",
    SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY="1",
    SGLANG_CHECK_KV_PAGE_INVARIANTS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

NO_GPU = "no CUDA device is visible"
GPU_VISIBLE = "this ring runs on the CPU: hide the GPU with CUDA_VISIBLE_DEVICES= (make test does)"


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
