"""Documents whose bf16 KV the arena cannot hold: served up to the model's context length."""

import pytest
from engine_probes import ZeroViewThenForce
from engines import LAYERS, SHALLOW

from arkv_sglang.engine.launch import flush
from arkv_sglang.engine.teacher_forcing import force
from arkv_sglang.eval.divergence import top_kl

CONFIG = {"budget": 0.25}
ARENA = {"max_total_tokens": 2000, "chunked_prefill_size": 512}
PARAMS = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def small(one_engine):
    return one_engine.start("arkv", CONFIG, **ARENA, **SHALLOW)


def figures(engine):
    return engine.get_server_info()["internal_states"][0]["arkv"]


def test_served_and_reported(small, prompt, generate):
    capacity = figures(small)["arkv_capacity_tokens"]
    assert capacity < 2000 and figures(small)["arkv_max_text_tokens"] >= 3516
    large = generate(small, prompt(0, 3500), 16)["meta_info"]
    assert large["completion_tokens"] == 16 and large["prompt_tokens"] == 3500
    assert large["arkv"]["chunks_compressed"] == 7 and large["arkv"]["rows_evicted"] > 0
    held = large["arkv"]["bytes_original"] + large["arkv"]["bytes_quantized"]
    assert held <= 1.1 * 0.25 * 3516 * LAYERS * 768
    # What it was at most: the view and a chunk in bf16.
    peak = large["arkv"]["peak_bytes_original"] + large["arkv"]["peak_bytes_quantized"]
    assert peak <= (0.25 * 3500 + 512) * LAYERS * 768
    # Who fits is served as ever, and nothing of the large one is anybody's prefix.
    small_one = generate(small, prompt(0, 800), 4)["meta_info"]
    assert small_one["arkv"]["chunks_compressed"] == 0 and small_one["cached_tokens"] < 100


def test_beside_others(small, prompt):
    """Two that are larger than the arena and three that are not, all at once."""
    lengths = [2500, 450, 2250, 650, 350]
    outs = small.generate(
        input_ids=[prompt(i, n) for i, n in enumerate(lengths)], sampling_params=PARAMS
    )
    assert [len(out["output_ids"]) for out in outs] == [16] * len(lengths)
    chunks = [out["meta_info"]["arkv"]["chunks_compressed"] for out in outs]
    assert [count > 0 for count in chunks] == [n > 2000 for n in lengths]
    flush(small)
    found = figures(small)
    assert found["arkv_free_bytes"] == found["arkv_arena_bytes"]


def test_beyond_the_context_is_refused(small, prompt, generate):
    with pytest.raises(ValueError, match="longer than the model's context length"):
        generate(small, prompt(0, 8192), 4)


@pytest.mark.soak
def test_what_it_costs(one_engine, documents, tmp_path):
    """KL to stock on decode steps, against the same view wiped."""
    texts = [ids for ids in documents if len(ids) > 5030][:2] or [documents[0] * 2]
    cases = [ids[:5000] for ids in texts], [ids[5000:5013] for ids in texts]
    ours = one_engine.start("arkv", CONFIG, max_total_tokens=4000, chunked_prefill_size=1024)
    found = force(ours, *cases, tmp_path / "chunks")
    wiped = force(ours, *cases, tmp_path / "wiped", processor=ZeroViewThenForce)
    stock = force(one_engine.start("none", max_total_tokens=8000), *cases, tmp_path / "stock")
    kl, control = (
        sum(top_kl(one, other)[1:].mean().item() for one, other in zip(stock, each, strict=True))
        / len(texts)
        for each in (found, wiped)
    )
    print(f"5,000 tokens compressed chunk by chunk: mean KL {kl:.3f} nats; wiped {control:.3f}")
    assert kl < control / 4
