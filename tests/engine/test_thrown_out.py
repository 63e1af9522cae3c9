"""A request that is thrown out with more text than could be a prompt again."""

import asyncio
from pathlib import Path

import pytest
from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput
from test_load import size_of
from tiny_models import tiny_model

from arkv_sglang.engine.launch import flush

CHUNK, CAPACITY = 600, 700


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(Path(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def engine(one_engine, model, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return one_engine.start(
        "arkv",
        {"budget": 0.25, "min_tokens": 143},
        model_path=model,
        skip_tokenizer_init=True,
        max_total_tokens=size_of(CAPACITY)[0],
        chunked_prefill_size=CHUNK,
    )


def thrown_out_after(engine, prompt: int, new: int):
    """All requests are thrown out once this one has ``new`` tokens; its last output."""

    async def run():
        stream = await engine.async_generate(
            input_ids=[1 + i % 300 for i in range(prompt)],
            sampling_params={"temperature": 0, "max_new_tokens": new + 20, "ignore_eos": True},
            stream=True,
        )
        last, paused = None, False
        async for last in stream:
            if not paused and len(last["output_ids"]) >= new:
                paused = True
                await engine.tokenizer_manager.pause_generation(
                    PauseGenerationReqInput(mode="retract")
                )
                await engine.tokenizer_manager.continue_generation(ContinueGenerationReqInput())
        assert paused
        return last

    return engine.loop.run_until_complete(asyncio.wait_for(run(), 120))


def test_what_fits_again_goes_on(engine):
    out = thrown_out_after(engine, prompt=310, new=20)
    assert out["meta_info"]["finish_reason"]["type"] == "length"
    assert len(out["output_ids"]) == 40


def test_what_does_not_is_told_so_and_holds_nobody_up(engine):
    out = thrown_out_after(engine, prompt=610, new=100)
    reason = out["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert "no longer fits as a prompt" in reason["message"]
    params = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    after = engine.generate(input_ids=list(range(1, 200)), sampling_params=params)
    assert len(after["output_ids"]) == 4
    flush(engine)
    found = engine.get_server_info()["internal_states"][0]["arkv"]
    assert found["arkv_running_requests"] == 0
    assert found["arkv_free_bytes"] == found["arkv_arena_bytes"]
