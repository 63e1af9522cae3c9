"""Tiers under a byte budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arkv_sglang.config import load_config
from arkv_sglang.core import Geometry, Tier
from arkv_sglang.policy import Shares, assign, protection, shares

GEOMETRY = Geometry(num_layers=3, num_kv_heads=2, head_dim=64)
NUM_TOKENS = 1000


def split(policy, budget, num_rows=NUM_TOKENS, **settings):
    # Prompts that are short for their budget count, too.
    config = load_config(policy, {"budget": budget, "when": "always", **settings})
    return config, shares(
        config,
        GEOMETRY,
        num_rows=num_rows,
        num_protected=min(config.num_protected, num_rows),
        budget_bytes=config.budget_bytes(num_rows, GEOMETRY.token_bytes),
        oq_ratio=torch.tensor([1.0, 0.5, 0.0]),
    )


def planned_bytes(plan):
    return sum(GEOMETRY.row_bytes(tier) * n for tier, n in plan.num_rows().items())


def plan_for(policy, budget, num_rows=NUM_TOKENS, **settings):
    config, found = split(policy, budget, num_rows, **settings)
    scores = torch.rand(GEOMETRY.num_layers, num_rows)
    positions = torch.arange(num_rows)
    return config, scores, assign(scores, protection(positions, num_rows, config), found)


def test_original_is_bf16_or_nothing():
    assert split("original", 0.25)[1] == Shares(250, 0)


@pytest.mark.parametrize("policy", ["quantized", "arkv"])
def test_everything_fits_in_fp8(policy):
    """1000 fp8 rows of 260 bytes and what is left of 550 * 512 for bf16 sinks and window."""
    assert split(policy, 0.55)[1] == Shares(36, 964)


@pytest.mark.parametrize("policy", ["quantized", "arkv"])
def test_bf16_only_where_it_fits(policy):
    """(0.51 * 1000 * 512 - 1000 * 260) / (512 - 260) = 4.4 rows."""
    assert split(policy, 0.51)[1] == Shares(4, 996)


@pytest.mark.parametrize("policy", ["quantized", "arkv"])
def test_below_fp8_sinks_and_window_stay_bf16(policy):
    """(250 * 512 - 36 * 512) / 260 = 421.4 rows."""
    assert split(policy, 0.25)[1] == Shares(36, 421)


@pytest.mark.parametrize("policy", ["quantized", "arkv"])
def test_a_ratio_that_is_just_enough_for_fp8_is_enough_at_every_length(policy):
    """260 / 512 = 0.5078125: no rounding may evict a token."""
    for num_rows in range(100, 2000, 7):
        assert split(policy, 0.5078125, num_rows)[1] == Shares(0, num_rows)


def test_ratios_are_decimals():
    assert split("original", 0.57, 100)[1] == Shares(57, 0)


def test_paper_counts_tokens_and_splits_by_layer():
    found = split("arkv-paper", 0.25)[1]
    assert found.num_original.flatten().tolist() == [250, 125, 32]
    assert (found.num_original + found.num_quantized).flatten().tolist() == [250, 250, 250]


def test_a_cap_in_tokens():
    assert split("original", 300)[1] == Shares(300, 0)


def test_protected_rows_outlive_any_budget():
    for policy in ("original", "quantized", "arkv"):
        assert split(policy, 0.01)[1] == Shares(36, 0)


@given(
    policy=st.sampled_from(["original", "quantized", "arkv", "arkv-paper"]),
    budget=st.one_of(st.floats(0.05, 1.0), st.integers(40, 2000)),
    num_rows=st.integers(1, 400),
)
def test_within_budget_and_protected(policy, budget, num_rows):
    config, scores, plan = plan_for(policy, budget, num_rows)
    positions = torch.arange(num_rows)
    guarded = (positions < config.sinks) | (positions >= num_rows - config.window)
    floor = int(guarded.sum()) * GEOMETRY.row_bytes(Tier.ORIGINAL) * GEOMETRY.num_layers
    assert planned_bytes(plan) <= max(config.budget_bytes(num_rows, GEOMETRY.token_bytes), floor)
    assert (plan.tiers[:, guarded] != Tier.EVICTED).all()
    for layer in range(GEOMETRY.num_layers):
        # Among ordinary tokens no evicted one outranks a kept one, no fp8 one a bf16 one.
        ordered = plan.tiers[layer, ~guarded][scores[layer, ~guarded].argsort(descending=True)]
        size = {Tier.ORIGINAL: 2, Tier.QUANTIZED: 1, Tier.EVICTED: 0}
        ranks = [size[Tier(t)] for t in ordered.tolist()]
        assert ranks == sorted(ranks, reverse=True)


def test_absent_candidates_get_nothing():
    scores = torch.tensor([[0.3, -torch.inf, 0.1]])
    plan = assign(scores, torch.zeros(3, dtype=torch.long), Shares(3, 0))
    assert plan.tiers.tolist() == [[Tier.ORIGINAL, Tier.EVICTED, Tier.ORIGINAL]]


def test_no_score_outranks_the_protected():
    scores = torch.tensor([[1e30, 0.5, 0.0, 1e-30]])
    plan = assign(scores, torch.tensor([0, 0, 1, 2]), Shares(1, 1))
    evicted, original, quantized = Tier.EVICTED, Tier.ORIGINAL, Tier.QUANTIZED
    assert plan.tiers.tolist() == [[evicted, evicted, quantized, original]]


def test_a_protected_candidate_that_is_absent_takes_no_place():
    scores = torch.tensor([[-torch.inf, 0.5, 0.1]])
    plan = assign(scores, torch.tensor([5, 0, 0]), Shares(1, 0))
    assert plan.tiers.tolist() == [[Tier.EVICTED, Tier.ORIGINAL, Tier.EVICTED]]


def test_the_newest_of_the_window_first():
    config = load_config("arkv", {"budget": 40, "window": 4, "sinks": 2})
    ranks = protection(torch.arange(10), 10, config)
    assert ranks.tolist() == [2, 1, 0, 0, 0, 0, 3, 4, 5, 6]
