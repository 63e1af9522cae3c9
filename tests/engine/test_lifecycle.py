"""Every way a request begins and ends: right text, nothing leaked. Strict checks run when idle."""

import json

import pytest
from engine_probes import Probe
from engines import LAYERS, same_text

from arkv_sglang.engine.launch import flush

CHUNK, WINDOW = 512, 32
TOP_TWO = {"return_logprob": True, "top_logprobs_num": 2}


@pytest.fixture
def settled(arkv):
    """After the test the engine is idle, whole and still there."""
    yield
    found = arkv.get_server_info()["internal_states"][0]["arkv"]
    assert found["arkv_running_requests"] == found["arkv_views_requests"] == 0
    assert found["arkv_views_original_bytes"] == found["arkv_views_quantized_bytes"] == 0
    assert found["arkv_prompts_original_bytes"] == found["arkv_prompts_quantized_bytes"] == 0
    flush(arkv)
    found = arkv.get_server_info()["internal_states"][0]["arkv"]
    assert found["arkv_free_bytes"] == found["arkv_arena_bytes"]


pytestmark = pytest.mark.usefixtures("settled")


@pytest.mark.parametrize(
    "num_tokens",
    [3 * CHUNK + 100, CHUNK + 1, CHUNK + WINDOW - 1, 2 * CHUNK],
    ids=["4-chunks", "chunk+1", "chunk+window-1", "whole-chunks"],
)
def test_chunks_do_not_show(arkv, prompt, generate, num_tokens):
    """The same plan whether the window lies in one chunk or in two."""
    ids = prompt(7, num_tokens)
    first = generate(arkv, ids, 12, **TOP_TWO)
    # The second time all but the window comes from the tree, as one chunk.
    second = generate(arkv, ids, 12, **TOP_TWO)
    assert second["meta_info"]["cached_tokens"] == num_tokens - WINDOW
    assert first["meta_info"]["arkv"] == second["meta_info"]["arkv"]
    # Pooled scores tie by the dozen, so rounding in other chunks may keep another neighbourhood:
    # the tokens after the first, which sees the whole prompt, are not compared.
    first, second = (
        {"output_ids": out["output_ids"][:1], "meta_info": out["meta_info"]}
        for out in (first, second)
    )
    assert same_text(first, second)


def test_prefix_shared_and_diverging(arkv, prompt, generate):
    trunk = prompt(8, 1200)
    branches = [trunk[:1000] + prompt(9 + i, 700)[-500:] for i in range(2)]
    alone = []
    for ids in branches:
        flush(arkv)
        alone.append(generate(arkv, ids, 12, **TOP_TWO))
    flush(arkv)
    first, second = (generate(arkv, ids, 12, **TOP_TWO) for ids in branches)
    assert second["meta_info"]["cached_tokens"] >= 1000
    assert same_text(alone[0], first) and same_text(alone[1], second)


def test_fits_its_budget(arkv, prompt, generate):
    """Up to ``min_tokens`` nothing is compressed, and the output goes into the tree."""
    ids = prompt(2, 300)
    out = generate(arkv, ids, 12)
    figures = out["meta_info"]["arkv"]
    assert figures["times_planned"] == figures["rows_evicted"] == figures["rows_quantized"] == 0
    assert figures["rows_original"] == LAYERS * (300 + 11)
    again = generate(arkv, ids + out["output_ids"] + ids[:40], 2)
    assert again["meta_info"]["cached_tokens"] == 300 + 11


def test_compressed_output_stays_out_of_the_tree(arkv, prompt, generate):
    ids = prompt(2, 800)
    out = generate(arkv, ids, 12)
    again = generate(arkv, ids + out["output_ids"] + ids[:40], 2)
    assert again["meta_info"]["cached_tokens"] == 800


def test_replanned_as_it_grows(arkv, prompt, generate):
    out = generate(arkv, prompt(1, 700), 160)
    figures = out["meta_info"]["arkv"]
    assert figures["times_planned"] >= 3
    budget = 0.25 * 1.1 * (700 + 160) * LAYERS * 768
    assert figures["bytes_original"] + figures["bytes_quantized"] <= budget


def test_one_token_needs_no_view(arkv, prompt, generate):
    figures = generate(arkv, prompt(1, 700), 1)["meta_info"]["arkv"]
    assert figures["times_planned"] == 0


def test_one_token_warms_its_prompt(arkv, prompt, generate, tmp_path):
    # Nothing else may have warmed what they share.
    flush(arkv)
    for _ in range(2):
        generate(arkv, prompt(1, 700), 1)
    path = tmp_path / "probe.json"
    generate(
        arkv,
        prompt(2, 100),
        1,
        sampling_params={"custom_params": {"actions": {"0": "hottest"}, "path": str(path)}},
        custom_logit_processor=Probe.to_str(),
    )
    assert json.loads(path.read_text())["hottest"] > 0


def test_many_at_once(arkv, prompt):
    """More than the arena holds uncompressed: privatized, demoted, evicted, and all served."""
    prompts = [prompt(i, 800 + 90 * i) for i in range(9)]
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    outs = arkv.generate(input_ids=prompts, sampling_params=params)
    assert [len(out["output_ids"]) for out in outs] == [24] * len(prompts)
    assert all(out["meta_info"]["arkv"]["times_planned"] >= 1 for out in outs)
    info = arkv.get_server_info()["internal_states"][0]["arkv"]
    assert info["arkv_nodes_demoted_total"] > 0


def test_abort_in_mid_decode(arkv, prompt):
    async def abort() -> dict:
        params = {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}
        stream = await arkv.async_generate(
            input_ids=prompt(3, 900), sampling_params=params, stream=True, rid="to-abort"
        )
        count = 0
        async for chunk in stream:
            count += 1
            if count == 5:
                arkv.tokenizer_manager.abort_request(rid="to-abort")
            last = chunk
        return last

    last = arkv.loop.run_until_complete(abort())
    assert last["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(
    ("step", "action"), [("0", "poison_prompt"), ("0", "poison_values"), ("1", "poison_view")]
)
def test_nan_ends_its_request_alone(arkv, prompt, tmp_path, step, action):
    """What cannot be quantized is given up; who runs beside it finishes."""
    custom = {"actions": {step: action}, "path": str(tmp_path / "probe.json")}
    params = {"temperature": 0, "max_new_tokens": 160, "ignore_eos": True}
    flush(arkv)
    bad, good = arkv.generate(
        input_ids=[prompt(4, 700), prompt(5, 720)],
        sampling_params=[
            params | {"custom_params": custom},
            params | {"max_new_tokens": 12, "custom_params": {"actions": {}}},
        ],
        custom_logit_processor=Probe.to_str(),
    )
    assert json.loads((tmp_path / "probe.json").read_text())[action] > 0
    assert bad["meta_info"]["finish_reason"]["type"] == "abort"
    assert "NaN" in bad["meta_info"]["finish_reason"]["message"]
    assert len(bad["output_ids"]) < 160
    assert len(good["output_ids"]) == 12


def test_beams_are_refused(arkv, prompt, generate):
    with pytest.raises(ValueError, match="does not support beam search"):
        generate(arkv, prompt(3, 700), 8, sampling_params={"beam_width": 3})
    assert len(generate(arkv, prompt(3, 700), 8)["output_ids"]) == 8


def test_streams_carry_figures(arkv, prompt):
    params = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    chunks = list(arkv.generate(input_ids=prompt(3, 700), sampling_params=params, stream=True))
    assert chunks[-1]["meta_info"]["arkv"]["times_planned"] == 1
    assert not chunks[0]["meta_info"].get("arkv")


def test_integrity_between_steps(arkv, prompt, generate, tmp_path):
    path = tmp_path / "probe.json"
    actions = {str(step): "check" for step in range(1, 12)}
    generate(
        arkv,
        prompt(5, 1100),
        12,
        sampling_params={"custom_params": {"actions": actions, "path": str(path)}},
        custom_logit_processor=Probe.to_str(),
    )
    assert json.loads(path.read_text())["check"] == []
