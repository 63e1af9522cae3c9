"""The three states are real: bytes decide the output, and evicted bytes are somebody else's."""

import json

import pytest
from engine_probes import Probe
from engines import LAYERS

from arkv_sglang.engine.launch import flush

NUM_TOKENS = 24
PROMPT_TOKENS = 1500


@pytest.fixture
def probe(arkv, generate, tmp_path):
    # Each run on an empty cache, so that all of them compute alike.
    flush(arkv)

    def run(ids, actions, num_tokens=NUM_TOKENS):
        flush(arkv)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        out = generate(
            arkv,
            ids,
            num_tokens,
            sampling_params={"custom_params": {"actions": actions, "path": str(path)}},
            custom_logit_processor=Probe.to_str(),
        )
        flush(arkv)
        return out, json.loads(path.read_text())

    return run


def test_quantized_bytes_are_attended_to(arkv, prompt, generate, probe):
    ids = prompt(3, PROMPT_TOKENS)
    before = generate(arkv, ids, NUM_TOKENS)["output_ids"]
    after, found = probe(ids, {"2": "damage_quantized_rows"})
    assert found["damage_quantized_rows"] > 0
    assert after["output_ids"][:2] == before[:2]
    assert after["output_ids"] != before


def test_evicted_bytes_belong_to_others(arkv, prompt, generate, probe):
    ids = prompt(3, PROMPT_TOKENS)
    before = generate(arkv, ids, NUM_TOKENS)
    after, found = probe(ids, {"2": "overwrite_everything_else", "3": "check"})
    assert before["meta_info"]["arkv"]["rows_evicted"] > 0
    assert found["overwrite_everything_else"] > 0
    assert found["check"] == []
    assert after["output_ids"] == before["output_ids"]


def test_units_add_up(prompt, probe):
    """Privatizing takes the view's units and makes the prompt's reclaimable, to the unit."""
    ids = prompt(4, PROMPT_TOKENS)
    actions = {"0": "count_before", "1": "count_after", "2": "evict_tree"}
    _, found = probe(ids, actions)
    before, after, evicted = (found[name] for name in actions.values())
    assert before["views"] == before["reclaimable"] == 0
    assert before["free"] - after["free"] == after["views"] > 0
    assert after["reclaimable"] == after["tree"] > after["views"]
    assert evicted["tree"] == 0
    assert evicted["free"] == evicted["total"] - evicted["views"]
    assert all(counts["integrity"] == [] for counts in (before, after, evicted))


def test_figures_of_a_request(arkv, prompt, generate):
    flush(arkv)
    ids = prompt(5, PROMPT_TOKENS)
    figures = generate(arkv, ids, NUM_TOKENS)["meta_info"]["arkv"]
    layers, row_bytes, fp8_bytes = LAYERS, 2 * 2 * 3 * 64, 2 * 3 * 64 + 2 * 3
    assert figures["peak_rows_original"] == layers * PROMPT_TOKENS
    assert figures["peak_bytes_original"] == layers * PROMPT_TOKENS * row_bytes
    assert figures["bytes_quantized"] == figures["rows_quantized"] * fp8_bytes > 0
    assert figures["rows_original"] == layers * (4 + 32 + NUM_TOKENS - 1)
    kept = figures["rows_original"] + figures["rows_quantized"]
    assert kept + figures["rows_evicted"] == layers * (PROMPT_TOKENS + NUM_TOKENS - 1)
    assert figures["times_planned"] == 1
    budget = 0.25 * 1.1 * (PROMPT_TOKENS + NUM_TOKENS) * layers * row_bytes
    assert figures["bytes_original"] + figures["bytes_quantized"] <= budget


def test_figures_of_the_engine(arkv, prompt, generate):
    generate(arkv, prompt(6, PROMPT_TOKENS), 2)
    info = arkv.get_server_info()["internal_states"][0]["arkv"]
    owned = sum(
        info[f"arkv_{owner}_{tier}_bytes"]
        for owner in ("tree", "prompts", "views")
        for tier in ("original", "quantized")
    )
    assert owned + info["arkv_free_bytes"] == info["arkv_arena_bytes"] > 0
    assert info["arkv_tree_original_bytes"] > 0 == info["arkv_views_quantized_bytes"]
    assert 0 < info["arkv_overhead_bytes"] <= 0.1 * info["arkv_arena_bytes"]
    stock_bytes = 6000 * LAYERS * 2 * 2 * 3 * 64
    assert info["arkv_arena_bytes"] + info["arkv_overhead_bytes"] <= stock_bytes
