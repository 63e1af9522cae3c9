"""What documents will take, against the engine's own arithmetic and what engines did."""

from typing import Any

import pytest

from arkv_sglang.batch.kv_plan import KVPlanner, PolicyPlan
from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry
from arkv_sglang.sizes import Sizes

QWEN3_8B = Geometry(36, 8, 128)
SMOLLM2 = Geometry(30, 3, 64)
ARKV = {"kv_policy": "arkv", "kv_policy_config": {"budget": 0.25}}


def planner(
    engine: dict[str, Any], memory: int | None = None, geometry: Geometry = QWEN3_8B
) -> Any:
    return KVPlanner(geometry, 40_960, 256, engine, memory)


def lines(plans: list[PolicyPlan]) -> dict[tuple[str, Any], PolicyPlan]:
    return {(plan.policy, plan.budget): plan for plan in plans}


def test_as_many_run_at_once_as_were_seen_to() -> None:
    """docs/results: prompts of 600 tokens, 24 new ones, memory of 6,000: 10 and 28."""
    engine = ARKV | {"chunked_prefill_size": 512}
    plan = KVPlanner(SMOLLM2, 8192, 24, engine, 6000).plan([600 + n for n in range(40)])
    found = lines(plan)
    assert found["none", None].at_once_longest in (9, 10)
    assert found["quantized, arkv", 0.25].at_once_longest in (27, 28, 29)


def test_each_policy_keeps_to_its_budget_and_none_keeps_all() -> None:
    prompt, new = 10_000, 256
    found = lines(planner(ARKV).plan([prompt]))
    whole = (prompt + new) * QWEN3_8B.token_bytes
    assert found["none", None].median_bytes == whole == 1_512_308_736
    for (policy, budget), plan in found.items():
        tiers = plan.rows_original_ratio, plan.rows_quantized_ratio, plan.rows_evicted_ratio
        assert sum(tiers) == pytest.approx(1) and min(tiers) >= 0
        if policy != "none":
            config = load_config("arkv", {"budget": budget})
            assert config is not None
            allowed = Sizes(config, QWEN3_8B, 0).budget_bytes(prompt + new)
            assert 0.98 * allowed < plan.median_bytes <= allowed
    # Twice as many rows in the same bytes, but for their scales.
    original, arkv = found["original", 0.25], found["quantized, arkv", 0.25]
    assert original.rows_evicted_ratio == pytest.approx(0.75, abs=1e-3)
    assert arkv.rows_evicted_ratio == pytest.approx(0.51, abs=0.01)


def test_short_documents_are_left_as_they_are() -> None:
    short = lines(planner(ARKV).plan([512]))["quantized, arkv", 0.25]
    assert short.rows_original_ratio == 1
    assert short.median_bytes == (512 + 256) * QWEN3_8B.token_bytes


@pytest.mark.parametrize(
    ("engine", "marked"),
    [
        ({}, ("none", None)),
        (ARKV, ("quantized, arkv", 0.25)),
        ({"kv_policy": "quantized"}, ("quantized, arkv", 0.55)),
        ({"kv_policy": "original", "kv_policy_config": {"budget": 0.5}}, ("original", 0.5)),
        ({"kv_policy": "arkv-paper"}, ("arkv-paper, at most", 0.55)),
        ({"kv_policy": "arkv", "kv_policy_config": {"budget": 2048}}, ("quantized, arkv", 2048)),
    ],
)
def test_the_configured_line_is_marked_and_the_others_compared(
    engine: dict[str, Any], marked: tuple[str, Any]
) -> None:
    found = lines(planner(engine).plan([9000, 700]))
    assert [key for key, plan in found.items() if plan.is_configured] == [marked]
    assert {("none", None), ("original", 0.125), ("quantized, arkv", 0.25)} <= found.keys()


def test_a_budget_that_the_settings_do_not_allow_is_left_out() -> None:
    settings = {"budget": 0.5, "window": 200}
    engine = {"kv_policy": "arkv", "kv_policy_config": settings}
    budgets = {budget for _, budget in lines(planner(engine).plan([9000]))}
    assert budgets == {None, 0.5}


def test_the_longest_run_fewer_at_once_and_a_smaller_budget_more() -> None:
    found = lines(planner(ARKV, memory=100_000).plan([30_000] * 5 + [2000] * 95))
    for plan in found.values():
        assert 0 < plan.at_once_longest < plan.at_once_median
    at_once = [found["quantized, arkv", budget].at_once_median for budget in (0.25, 0.125)]
    assert found["none", None].at_once_median < at_once[0] < at_once[1]
    assert lines(planner(ARKV).plan([9]))["none", None].at_once_median is None


@pytest.mark.parametrize("geometry", [QWEN3_8B, SMOLLM2])
def test_the_memory_is_found_again_from_what_an_engine_says_it_holds(geometry: Geometry) -> None:
    made = planner(ARKV, 50_000, geometry)
    holds = made.capacity_tokens(is_compressing=True)
    assert 0.85 * 50_000 < holds < 50_000
    assert made.memory_of(holds, is_compressing=True) == pytest.approx(50_000, abs=3)
    assert made.capacity_tokens(is_compressing=False) == 50_000 == made.memory_of(50_000, False)
