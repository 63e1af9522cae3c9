"""Many questions on one document: each finds the whole of it in the tree, in whatever tiers."""

import json

import pytest
from engine_probes import Probe
from engines import same_text

from arkv_sglang.engine.launch import flush

DOCUMENT_TOKENS, NUM_TOKENS = 3000, 16
WINDOW = 32
QUESTIONS = ("\n\nWho is named in the text?", "\n\nWhat is the text about?")


@pytest.fixture(scope="module")
def asked(tokenizer, prompt):
    """Two prompts that begin with the same 3,000 tokens of document."""
    document = prompt(3, DOCUMENT_TOKENS)
    return [document + tokenizer(question)["input_ids"] for question in QUESTIONS]


@pytest.fixture(scope="module")
def ask(generate):
    def run(engine, ids, **kwargs):
        return generate(engine, ids, NUM_TOKENS, return_logprob=True, top_logprobs_num=2, **kwargs)

    return run


@pytest.fixture
def uncached(arkv, ask, asked):
    flush(arkv)
    return ask(arkv, asked[1])


def test_the_second_question(arkv, ask, asked, uncached):
    """All of the document is cached, although the first request's view dropped most of it."""
    flush(arkv)
    first = ask(arkv, asked[0])
    assert first["meta_info"]["arkv"]["rows_evicted"] > 0
    second = ask(arkv, asked[1])
    recomputed = max(WINDOW, len(asked[1]) - DOCUMENT_TOKENS)
    assert second["meta_info"]["cached_tokens"] >= len(asked[1]) - recomputed
    assert same_text(uncached, second)


def test_the_second_question_on_a_demoted_document(arkv, ask, asked, uncached, tmp_path):
    """Half of its layers are fp8 by then: the same length cached, and an answer as likely."""
    flush(arkv)
    ask(arkv, asked[0])
    params = {"actions": {"1": "demote_half"}, "path": str(tmp_path / "probe.json")}
    ask(
        arkv,
        asked[0][:40],
        sampling_params={"custom_params": params},
        custom_logit_processor=Probe.to_str(),
    )
    done = json.loads((tmp_path / "probe.json").read_text())["demote_half"]
    assert done["mixed_nodes"] > 0
    second = ask(arkv, asked[1])
    assert second["meta_info"]["cached_tokens"] >= DOCUMENT_TOKENS - WINDOW
    best = [
        [step[0][0] for step in out["meta_info"]["output_top_logprobs"]]
        for out in (uncached, second)
    ]
    means = [sum(each) / NUM_TOKENS for each in best]
    print(
        f"mean log-probability of the best token: uncached {means[0]:.4f}, demoted {means[1]:.4f}"
    )
    assert abs(means[0] - means[1]) < 0.1


def test_multi_turn(arkv, tokenizer, prompt, generate):
    """A chat that goes on: the prompt of each turn is found whole by the next."""
    flush(arkv)
    ids, cached = prompt(5, 900), 0
    for turn in range(3):
        out = generate(arkv, ids, 12)
        assert out["meta_info"]["cached_tokens"] >= cached - WINDOW
        cached = len(ids)
        ids = ids + out["output_ids"] + tokenizer(f"\n\nGo on, part {turn}.")["input_ids"]
