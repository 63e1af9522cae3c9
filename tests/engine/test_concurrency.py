"""Bytes freed are requests admitted: the same arena bytes, a quarter of them per request."""

import pytest

from arkv_sglang.engine.running import CountRunning

# Forty-eight long prompts on two engines: minutes on a slow machine.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]

NUM_PROMPTS, PROMPT_TOKENS, NUM_TOKENS = 24, 1700, 24
ARENA_TOKENS = 12_000


def peak_running(engine, prompt, path):
    params = {
        "temperature": 0,
        "max_new_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "custom_params": {"path": str(path)},
    }
    outs = engine.generate(
        input_ids=[prompt(i, PROMPT_TOKENS + i) for i in range(NUM_PROMPTS)],
        sampling_params=params,
        custom_logit_processor=CountRunning.to_str(),
    )
    assert [len(out["output_ids"]) for out in outs] == [NUM_TOKENS] * NUM_PROMPTS
    return int(path.read_text())


def test_three_times_as_many(one_engine, prompt, tmp_path):
    arena = {"max_total_tokens": ARENA_TOKENS}
    stock = peak_running(one_engine.start("none", **arena), prompt, tmp_path / "none")
    engine = one_engine.start("arkv", {"budget": 0.25}, chunked_prefill_size=512, **arena)
    ours = peak_running(engine, prompt, tmp_path / "arkv")
    print(f"peak running requests: none {stock}, arkv at 0.25 {ours}")
    assert ours >= 3 * stock
