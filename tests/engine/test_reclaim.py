"""Who gives room when bytes run short. The engine's real parts, without an engine."""

import pytest
from real_parts import RealParts, Request

DOCUMENT = range(500)


def question(index: int, length: int = 40) -> range:
    return range(10_000 + 100 * index, 10_000 + 100 * index + length)


pytestmark = pytest.mark.usefixtures("one_thread")


def admits(budget, req: Request, cached: int = 0) -> bool:
    """Whether the pass takes the request in; then it has what it needs reserved."""
    num_tokens, new = len(req.origin_input_ids), req.sampling_params.max_new_tokens
    budget.look_at(req)
    fits, _ = budget.check_prefill(
        extend_input_len=num_tokens - cached,
        total_tokens=num_tokens - cached + new + 1,
        max_new_tokens=new,
        input_tokens=num_tokens,
        swa_host_hit_length=0,
        chunk_limit=None,
    )
    if fits:
        budget.reserve(num_tokens - cached, new)
    return fits


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
    assert all(admits(budget, req, cached=len(text)) for req in reqs)
    parts.prefill(*reqs)
    assert all(parts.decode(reqs) for _ in range(30))
    assert parts.store.check_integrity() == []


@pytest.mark.parametrize("nan", [False, True])
def test_nan_gives_the_room_that_was_counted_on(nan):
    config = {"budget": 0.25, "when": "pressure", "min_tokens": 200}
    parts = RealParts("arkv", config, capacity=1000)
    first, second = Request(range(600)), Request(range(5000, 5600))
    parts.prefill(first, nan=nan)
    # NaN among the values does not show in the scores.
    assert parts.controller.waits(first)
    assert admits(parts.allocator.create_prefill_budget(parts.tree), second)
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
    # Somebody else is there.
    parts.controller.state(0)
    slots = 0
    while admits(budget, Request(range(600), new=3000)):
        slots += 3600
    assert 3600 <= slots <= parts.allocator.size
