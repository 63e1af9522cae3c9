"""Who gives room when bytes run short. The engine's real parts, without an engine."""

import pytest
import torch
from real_parts import RealParts, Request

DOCUMENT = range(500)


def question(index: int, length: int = 40) -> range:
    return range(10_000 + 100 * index, 10_000 + 100 * index + length)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("policy", ["original", "arkv"])
def test_a_hot_document_outlives_a_prompt_that_nobody_asked_for_before(policy):
    parts = RealParts(policy, {"budget": 0.6, "min_tokens": 200}, capacity=1000)
    for index in range(3):
        parts.ask([*DOCUMENT, *question(index)])
    once = range(50_000, 50_000 + parts.free_tokens - 10)
    demoted = parts.store.rows_demoted_total
    req = Request(once)
    parts.prefill(req)
    assert parts.controller.has_view(req)
    assert parts.cached(DOCUMENT) == len(DOCUMENT)
    assert parts.store.rows_demoted_total == demoted
    assert parts.cached(once) == 0
    assert parts.tree.views_taken_over_total == 1
    assert parts.store.check_integrity() == []


def test_a_cold_document_goes_for_a_newer_one():
    parts = RealParts("original", {"budget": 0.6, "min_tokens": 200}, capacity=1000)
    parts.ask(DOCUMENT)
    newer = range(50_000, 50_000 + parts.free_tokens - 10)
    parts.prefill(Request(newer))
    assert parts.cached(DOCUMENT) == 0
    assert parts.cached(newer) == len(newer)
    assert parts.tree.views_taken_over_total == 0


def test_a_question_of_one_token_warms_its_document():
    parts = RealParts("original", {"budget": 0.6, "min_tokens": 200}, capacity=2000)
    other = range(50_000, 50_600)
    for index in range(2):
        parts.ask([*DOCUMENT, *question(index)])
    parts.ask(other)
    parts.tree.reclaim(640 * parts.store.geometry.token_units)
    assert parts.cached(DOCUMENT) > parts.cached(other) == 0


def test_views_do_not_take_what_was_promised_to_others():
    """Many questions on one document, admitted since they fit beside it without views of their own:
    a copy for the first would leave the others nothing to grow into."""
    parts = RealParts("arkv", {"budget": 0.55, "min_tokens": 512}, capacity=3000)
    text = range(1500)
    parts.ask([*text, *question(0)])
    budget = parts.allocator.create_prefill_budget(parts.tree)
    reqs = [Request([*text, *question(1 + i)], new=30) for i in range(18)]
    lock = parts.tree.lock(parts.tree.root_node)
    for req in reqs:
        budget.look_at(req)
        assert budget.check_prefill(
            extend_input_len=40,
            total_tokens=71,
            max_new_tokens=30,
            input_tokens=1540,
            swa_host_hit_length=0,
            chunk_limit=None,
        )[0]
        budget.reserve(40, 30)
    parts.tree.unlock(lock)
    parts.prefill(*reqs)
    assert all(parts.decode(reqs) for _ in range(30))
    assert parts.store.check_integrity() == []
    for req in reqs:
        req.ended = True
    parts.tree.on_release(reqs[0], checkpointed=False)


@pytest.mark.parametrize("nan", [False, True])
def test_nan_gives_the_room_that_was_counted_on(nan):
    config = {"budget": 0.25, "when": "pressure", "min_tokens": 200}
    parts = RealParts("arkv", config, capacity=1000)
    first, second = Request(range(600)), Request(range(5000, 5600))
    parts.prefill(first, nan=nan)
    assert parts.controller.waits(first) != nan or nan
    budget = parts.allocator.create_prefill_budget(parts.tree)
    admitted, _ = budget.check_prefill(
        extend_input_len=600,
        total_tokens=651,
        max_new_tokens=50,
        input_tokens=600,
        swa_host_hit_length=0,
        chunk_limit=None,
    )
    assert admitted
    parts.prefill(second)
    assert (first.to_finish is not None) == nan
    if nan:
        assert "NaN" in first.to_finish.message
        assert sum(parts.store.view_num_rows(parts.controller.view(first.row)).values()) == 0
    assert parts.store.check_integrity() == []


@pytest.mark.parametrize("cached", [0, 4000])
def test_a_pass_charges_what_a_request_may_become(cached):
    """Also for one whose prompt is mostly in the tree: what it brings is not its whole prompt."""
    parts = RealParts("arkv", {"budget": 0.55, "min_tokens": 512}, capacity=9000)
    req = Request(range(cached + 600), new=1000)
    budget = parts.allocator.create_prefill_budget(parts.tree)
    budget.look_at(req)
    before = budget.total_offset
    budget.reserve(600, 1000)
    final = parts.controller.final_tokens(cached + 600, 1000)
    assert budget.total_offset - before >= min(600 + 1000, max(final, 600))


def test_slots_are_not_promised_twice():
    """At a small budget decoded tokens need more slots than bytes."""
    parts = RealParts("arkv", {"budget": 0.125, "min_tokens": 512}, capacity=7000)
    budget = parts.allocator.create_prefill_budget(parts.tree)
    parts.controller.states[0] = parts.controller.state(0)
    slots = 0
    for _ in range(20):
        req = Request(range(600), new=3000)
        budget.look_at(req)
        admitted, _ = budget.check_prefill(
            extend_input_len=600,
            total_tokens=3601,
            max_new_tokens=3000,
            input_tokens=600,
            swa_host_hit_length=0,
            chunk_limit=None,
        )
        if not admitted:
            break
        budget.reserve(600, 3000)
        slots += 3600
    assert 3600 <= slots <= parts.allocator.size
