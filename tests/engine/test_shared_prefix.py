"""Many questions on one document: each finds the whole of it in the tree, in whatever tiers."""

import json

import pytest
from engine_probes import Probe

from arkv_sglang.engine.launch import flush
from arkv_sglang.engine.teacher_forcing import force
from arkv_sglang.eval.divergence import top_kl

NUM_TOKENS = 16
WINDOW = 32
# Of a step that sees the whole document, and of the mean over views of it: those may keep another
# neighbourhood where pooled scores tie.
MOST_KL_WHOLE, MOST_KL_VIEW = 0.01, 0.2
QUESTIONS = ("\n\nWho is named in the text?", "\n\nWhat is the text about?")


@pytest.fixture
def arkv(one_engine):
    """All layers of the model, since its answers are compared."""
    return one_engine.start("arkv", {"budget": 0.25}, chunked_prefill_size=512)


@pytest.fixture(
    scope="module",
    params=[1000, pytest.param(3000, marks=pytest.mark.soak)],
    ids="{}-tokens".format,
)
def document_tokens(request):
    return request.param


@pytest.fixture(scope="module")
def asked(tokenizer, prompt, document_tokens):
    """Two prompts that begin with the same document."""
    document = prompt(3, document_tokens)
    return [document + tokenizer(question)["input_ids"] for question in QUESTIONS]


@pytest.fixture(scope="module")
def ask(generate):
    def run(engine, ids, **kwargs):
        return generate(engine, ids, NUM_TOKENS, return_logprob=True, top_logprobs_num=2, **kwargs)

    return run


@pytest.fixture
def forced(arkv, ask, asked, tmp_path):
    """``forced(name)``: KL at each step of one answer to the second question, forced on it now, to
    what it was on an empty cache."""
    flush(arkv)
    case = [asked[1]], [ask(arkv, asked[1])["output_ids"]]
    flush(arkv)
    (reference,) = force(arkv, *case, tmp_path / "uncached")
    flush(arkv)

    def run(name, ids=asked[1]):
        return top_kl(reference, force(arkv, [ids], case[1], tmp_path / name)[0])

    return run


def test_the_second_question(arkv, ask, asked, forced, document_tokens):
    """All of the document is cached, although the first request's view dropped most of it, and the
    answer is as likely as without a cache."""
    first = ask(arkv, asked[0])
    assert first["meta_info"]["arkv"]["rows_evicted"] > 0
    kl = forced("cached")
    second = ask(arkv, asked[1])
    recomputed = max(WINDOW, len(asked[1]) - document_tokens)
    assert second["meta_info"]["cached_tokens"] >= len(asked[1]) - recomputed
    print(f"KL to uncached, bf16: first step {kl[0]:.5f}, mean {kl.mean():.5f} nats")
    assert kl[0] <= MOST_KL_WHOLE and kl.mean() <= MOST_KL_VIEW
    # And a document that is not there shows.
    assert forced("without", asked[1][-40:])[0] > 0.1


def test_the_second_question_on_a_demoted_document(
    arkv, ask, asked, forced, document_tokens, tmp_path
):
    """Half of its layers are fp8 by then: the same length cached, and an answer as likely."""
    ask(arkv, asked[0])
    params = {"actions": {"1": "demote_half"}, "path": str(tmp_path / "probe.json")}
    ask(
        arkv,
        asked[0][:40],
        sampling_params={"custom_params": params},
        custom_logit_processor=Probe.to_str(),
    )
    done = json.loads((tmp_path / "probe.json").read_text())["demote_half"]
    assert done["mixed_nodes"] > 0 and done["integrity"] == []
    kl = forced("demoted")
    assert ask(arkv, asked[1])["meta_info"]["cached_tokens"] >= document_tokens - WINDOW
    print(f"KL to uncached, half the layers fp8: first step {kl[0]:.5f}, mean {kl.mean():.5f} nats")
    # The first step sees the whole document; the others a view of it, under its budget in both.
    assert kl[0] <= MOST_KL_WHOLE and kl.mean() <= MOST_KL_VIEW


def test_multi_turn(arkv, tokenizer, prompt, generate):
    """A chat that goes on: the prompt of each turn is found whole by the next."""
    flush(arkv)
    ids, cached = prompt(5, 900), 0
    for turn in range(3):
        out = generate(arkv, ids, 12)
        assert out["meta_info"]["cached_tokens"] >= cached - WINDOW
        cached = len(ids)
        ids = ids + out["output_ids"] + tokenizer(f"\n\nGo on, part {turn}.")["input_ids"]
