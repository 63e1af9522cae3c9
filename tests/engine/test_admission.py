"""What is taken in can be admitted: the two ends of admission agree. Real classes, no engine."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idle_allocator import IdleAllocator

from arkv_sglang.core import Geometry
from arkv_sglang.engine.budget import ArkvPrefillBudget
from arkv_sglang.engine.pool import PoolSize

GEOMETRY = Geometry(30, 3, 64)
CONTEXT = 8192
EMPTY_TREE = SimpleNamespace(
    evictable_size=lambda: 0,
    reclaimable_units=lambda: 0,
    compressible_units=lambda req: 0,
    supports_mamba=lambda: False,
)


def admitted(
    allocator: IdleAllocator, prompt: int, new: int, cached: int = 0, alone: bool = True
) -> bool:
    allocator.controller.states = {} if alone else {1: SimpleNamespace(waits=False)}
    budget = ArkvPrefillBudget(allocator, EMPTY_TREE)
    return budget.check_prefill(
        extend_input_len=prompt - cached,
        total_tokens=prompt - cached + new + 1,
        max_new_tokens=new,
        input_tokens=prompt,
        swa_host_hit_length=0,
        chunk_limit=512,
    )[0]


@settings(max_examples=400, deadline=None)
@given(
    tokens=st.integers(200, 4000),
    prompt=st.integers(1, 8000),
    new=st.integers(0, 9000),
    policy=st.sampled_from(["arkv", "original", "quantized", "arkv-paper"]),
    budget=st.sampled_from([0.25, 0.55, 0.9, 1.0, 400]),
    min_tokens=st.sampled_from([143, 600, 1 << 20]),
    cached=st.floats(0, 1),
    chunk=st.sampled_from([None, 128, 1024]),
)
def test_nothing_is_taken_in_that_would_wait_for_ever(
    tokens: int,
    prompt: int,
    new: int,
    policy: str,
    budget: float,
    min_tokens: int,
    cached: float,
    chunk: int | None,
) -> None:
    # SGLang lets nothing in that is longer than the context.
    new = min(new, CONTEXT - prompt)
    size = PoolSize.from_tokens(tokens, CONTEXT, GEOMETRY)
    allocator = IdleAllocator(GEOMETRY, size, policy, {"budget": budget, "min_tokens": min_tokens})
    allocator.controller.chunk_tokens = chunk
    clipped = allocator.taken_in(prompt, new)
    if clipped is None:
        assert not admitted(allocator, prompt, 0)
    else:
        assert 0 <= clipped <= new and admitted(allocator, prompt, clipped)
        # No more is cut off than must be.
        assert clipped == new or not admitted(allocator, prompt, clipped + 1, alone=False)
        oversized = allocator.controller.oversized(prompt)
        # Larger than the arena, but not what it is compressed to and a chunk beside it.
        in_bf16 = (prompt + 1) * allocator.token_units
        assert oversized == (chunk is not None and in_bf16 >= allocator.store.num_units)
        longest = allocator.max_text_tokens
        if prompt + new <= longest and allocator.controller.compresses(prompt, new):
            assert clipped == new
        if prompt >= longest:
            assert clipped == 0 or not allocator.controller.compresses(longest - 1, 1)
        prefix = 0 if oversized else int(cached * (prompt - 1))
        allocator.lock_prefix(prefix)
        assert admitted(allocator, prompt, clipped, prefix)


@pytest.mark.parametrize(("prompt", "new", "wanted"), [(520, 100, 100), (2728, 100, None)])
def test_in_figures(prompt: int, new: int, wanted: int | None) -> None:
    size = PoolSize.from_tokens(3000, CONTEXT, GEOMETRY)
    allocator = IdleAllocator(GEOMETRY, size, "arkv", {"budget": 0.25})
    assert allocator.capacity_tokens == 2728
    assert allocator.max_text_tokens == 2728
    assert allocator.taken_in(prompt, new) == wanted
