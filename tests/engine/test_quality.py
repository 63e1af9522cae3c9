"""KL on decode steps after the view was made: what a compressed cache does to the model."""

import pytest
from engine_probes import ZeroViewThenForce

from arkv_sglang.engine.teacher_forcing import force
from arkv_sglang.eval.divergence import top_kl

NUM_DOCUMENTS, PROMPT_TOKENS, NUM_TOKENS = 5, 700, 25


@pytest.fixture(scope="module")
def cases(documents):
    prompts = [ids[:PROMPT_TOKENS] for ids in documents[:NUM_DOCUMENTS]]
    return prompts, [ids[PROMPT_TOKENS:][:NUM_TOKENS] for ids in documents[:NUM_DOCUMENTS]]


@pytest.fixture(scope="module")
def stock(one_engine, cases, tmp_path_factory):
    return force(one_engine.start("none"), *cases, tmp_path_factory.mktemp("stock"))


def mean_kl(reference, found):
    """Step 0 is prefill, which sees the whole cache and proves nothing."""
    steps = [top_kl(one, other)[1:] for one, other in zip(reference, found, strict=True)]
    return sum(step.mean().item() for step in steps) / len(steps)


def test_fp8_costs_little(one_engine, cases, stock, tmp_path):
    engine = one_engine.start("quantized", {"budget": 0.55})
    divergence = mean_kl(stock, force(engine, *cases, tmp_path / "fp8"))
    print(f"quantized at 0.55: mean KL {divergence:.5f} nats")
    assert divergence <= 0.005
    one = [documents[:1] for documents in cases]
    control = force(engine, *one, tmp_path / "zero", processor=ZeroViewThenForce)
    lifted = mean_kl(stock[:1], control)
    print(f"control, view zeroed: mean KL {lifted:.3f} nats")
    assert lifted > 0.1


def test_nothing_was_evicted(one_engine, cases, generate):
    engine = one_engine.start("quantized", {"budget": 0.55})
    figures = generate(engine, cases[0][0], 8)["meta_info"]["arkv"]
    assert figures["times_planned"] == 1
    assert figures["rows_evicted"] == 0 < figures["rows_quantized"]
