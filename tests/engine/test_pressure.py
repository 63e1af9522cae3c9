"""Bytes run short: views take over their prompts' units, requests are thrown out and come back."""

import pytest
from engines import LAYERS, SHALLOW, same_text

from arkv_sglang.engine.launch import flush

PARAMS = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}
CONFIG = {"budget": 0.25}
TINY = SHALLOW | {"max_total_tokens": 1700, "chunked_prefill_size": 1400}


def figures(engine):
    return engine.get_server_info()["internal_states"][0]["arkv"]


def one_by_one(engine, ids, generate):
    """Text on an empty cache: prompts share an instruction, which demotion would have changed."""
    flush(engine)
    return generate(engine, ids, 20, return_logprob=True, top_logprobs_num=2)


def test_no_free_unit(arkv, one_engine, prompt, generate):
    """A tiny arena: views are taken over from the prompts' own units, and the text is the same."""
    ids = [prompt(i, 1300) for i in range(2)]
    before = figures(arkv)["arkv_views_taken_over_total"]
    wanted = [one_by_one(arkv, each, generate) for each in ids]
    assert figures(arkv)["arkv_views_taken_over_total"] == before
    tight = one_engine.start("arkv", CONFIG, **TINY)
    for one, other in zip(wanted, (one_by_one(tight, each, generate) for each in ids), strict=True):
        assert same_text(one, other)
    assert figures(tight)["arkv_views_taken_over_total"] > 0
    outs = tight.generate(input_ids=ids, sampling_params=PARAMS)
    assert [len(out["output_ids"]) for out in outs] == [20] * len(ids)
    flush(tight)
    assert figures(tight)["arkv_free_bytes"] == figures(tight)["arkv_arena_bytes"]


def test_two_privatized_in_one_batch(one_engine, prompt):
    """Both prompts end in the same pass, and the arena holds no more than the two of them."""
    tight = one_engine.start("arkv", CONFIG, **TINY)
    ids = [prompt(5, 700), prompt(6, 700)]
    outs = tight.generate(input_ids=ids, sampling_params=PARAMS)
    assert [len(out["output_ids"]) for out in outs] == [20, 20]
    assert all(out["meta_info"]["arkv"]["times_planned"] >= 1 for out in outs)


def test_a_view_waits_for_room(one_engine, prompt):
    """Neither of two requests may take over the prefix that they share, and there is no room for a
    copy: both decode on the complete prompt until one ends, and the other's view is made then."""
    tight = one_engine.start("arkv", CONFIG, **TINY)
    flush(tight)
    trunk = prompt(7, 1150)
    tight.generate(input_ids=trunk, sampling_params=PARAMS | {"max_new_tokens": 1})
    ids = [trunk + prompt(8 + i, 300)[-150:] for i in range(2)]
    lengths = [6, 24]
    outs = tight.generate(
        input_ids=ids, sampling_params=[PARAMS | {"max_new_tokens": n} for n in lengths]
    )
    assert [len(out["output_ids"]) for out in outs] == lengths
    assert all(out["meta_info"]["cached_tokens"] >= len(trunk) for out in outs)
    first, second = (out["meta_info"]["arkv"] for out in outs)
    assert first["times_planned"] == 0 < second["times_planned"]
    # None of what it decoded is lost: what came before the view is in it, in whatever tier the
    # budget allows, and what came after stands behind it in bf16.
    assert second["rows_original"] >= LAYERS * (4 + 32 + 24 - 1 - 6)
    flush(tight)
    assert figures(tight)["arkv_free_bytes"] == figures(tight)["arkv_arena_bytes"]


def test_a_prompt_that_cannot_fit(one_engine, prompt, generate):
    tight = one_engine.start("arkv", CONFIG, **TINY)
    with pytest.raises(ValueError, match="exceeds the KV memory budget"):
        generate(tight, prompt(0, 2500), 4)
    assert len(generate(tight, prompt(0, 900), 4)["output_ids"]) == 4


def test_when_pressure(one_engine, prompt, generate):
    """Alone, a request keeps its whole prompt; beside others it is compressed, but only then."""
    config = CONFIG | {"when": "pressure"}
    arena = {"max_total_tokens": 6000, "chunked_prefill_size": 512}
    engine = one_engine.start("arkv", config, **arena, **SHALLOW)
    alone = one_by_one(engine, prompt(0, 1300), generate)
    kept = alone["meta_info"]["arkv"]
    assert kept["times_planned"] == kept["rows_evicted"] == kept["rows_quantized"] == 0
    assert kept["rows_original"] == LAYERS * (1300 + 19)
    # It never had to be compressed, so its answer is a prefix like any other.
    again = generate(engine, prompt(0, 1300) + alone["output_ids"] + prompt(1, 60), 2)
    assert again["meta_info"]["cached_tokens"] >= 1300 + 19 - 32
    outs = engine.generate(input_ids=[prompt(i, 1300) for i in range(9)], sampling_params=PARAMS)
    assert [len(out["output_ids"]) for out in outs] == [20] * 9
    planned = [out["meta_info"]["arkv"]["times_planned"] for out in outs]
    assert any(planned) and not all(planned)
    after = figures(engine)
    assert after["arkv_views_created_under_pressure_total"] > 0
    # More at once than their prompts in bf16 would let.
    assert after["arkv_peak_running_requests"] > after["arkv_capacity_tokens"] // 1300
    assert after["arkv_views_waiting_requests"] == after["arkv_overhead_statistics_bytes"] == 0
    flush(engine)
    assert figures(engine)["arkv_free_bytes"] == figures(engine)["arkv_arena_bytes"]


@pytest.mark.soak  # the short ring has test_thrown_out
def test_forced_retraction(one_engine, monkeypatch, prompt):
    """SGLang throws running requests out every few steps; they come back and finish."""
    monkeypatch.setenv("SGLANG_TEST_RETRACT", "1")
    one_engine.stop()
    running = one_engine.start("arkv", CONFIG, **SHALLOW)
    outs = running.generate(input_ids=[prompt(i, 800) for i in range(3)], sampling_params=PARAMS)
    assert [len(out["output_ids"]) for out in outs] == [20] * 3
    assert sum(out["meta_info"]["num_retractions"] for out in outs) > 0
    assert figures(running)["arkv_views_requests"] == 0
    flush(running)
    one_engine.stop()
