"""The tree's eviction policies on a shortened trace. No engine is started."""

import pytest

from arkv_sglang.bench.replay import (
    HEAT,
    POLICIES,
    SIZES,
    TIERING,
    Replay,
    Result,
    attention_of,
    heat_over_best_baseline,
    replay,
    tiering_over_heat,
)
from arkv_sglang.bench.trace import TraceSettings, build_trace

SMALLEST = SIZES[0]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trace():
    return build_trace(TraceSettings(num_requests=400))


@pytest.fixture(scope="module")
def attention(trace):
    return attention_of(trace)


@pytest.fixture(scope="module")
def results(trace, attention) -> dict[str, Result]:
    """By policy, at the smallest size."""
    return {policy: replay(trace, attention, policy, SMALLEST) for policy in POLICIES}


def test_the_same_settings_give_the_same_trace(trace):
    again = build_trace(trace.settings)
    assert [one.token_ids for one in again.requests] == [one.token_ids for one in trace.requests]


def test_unique_tokens_are_those_of_the_whole_tree(trace, attention):
    run = Replay(HEAT, trace.num_unique_tokens, max(len(one.token_ids) for one in trace.requests))
    for each in zip(trace.requests, attention, strict=True):
        run.serve(*each)
    assert run.tree.total_size() == trace.num_unique_tokens
    assert run.store.free_units == 0
    assert run.tree.tokens_evicted_total == 0


@pytest.mark.parametrize("policy", [HEAT, TIERING])
def test_bytes_hold_after_every_request(trace, attention, policy):
    arena_tokens = int(SMALLEST * trace.num_unique_tokens)
    run = Replay(policy, arena_tokens, max(len(one.token_ids) for one in trace.requests))
    for index, each in enumerate(zip(trace.requests[:150], attention[:150], strict=True)):
        run.serve(*each)
        in_tree = sum(run.tree.bytes_by_tier().values()) // run.store.geometry.unit_bytes
        assert run.store.free_units >= 0
        assert in_tree + run.store.free_units == run.store.num_units
        if index % 30 == 0:
            assert run.store.check_integrity() == []
    assert run.tree.tokens_evicted_total > 0
    assert (run.tree.nodes_demoted_total > 0) == (policy == TIERING)


def test_heat_is_as_good_as_the_best_baseline(results):
    assert heat_over_best_baseline(results) >= 1


def test_tiering_raises_the_hit_ratio(results):
    assert tiering_over_heat(results) >= 1.3


def test_the_instruction_survives(results):
    assert all(results[name].instruction_hit_ratio > 0.99 for name in (HEAT, TIERING))
